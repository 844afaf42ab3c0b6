// Package store is what walsidecar needs of an object store: objects that are put once,
// one object per node that is replaced by compare-and-swap, ranged reads. An S3-compatible
// bucket and a directory give it.
//
// Every method may be called by several goroutines at once. Bodies belong to the caller
// again when the method returns. Errors wrap one of the sentinels below.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store is one root (a prefix of a bucket, or a directory) and the keys below it. A key is
// one or more elements joined by '/'; an element is 1 to 200 bytes of A-Z a-z 0-9 - _ . =
// and does not begin with a dot; a key is at most MaxKeyBytes long.
//
// What is safe to repeat is repeated, with backoff, for as long as Options.RetryFor says.
// A conditional put is repeated only while it is known that it was not carried out; once
// that cannot be known it fails with ErrUnknownOutcome at once, and the caller settles it
// by reading.
type Store interface {
	// PutIfAbsent makes the object, which must not exist: ErrExists otherwise.
	PutIfAbsent(ctx context.Context, key string, body []byte) (Version, error)
	// PutIfMatch replaces the object if its version is still old: ErrChanged otherwise. An
	// empty old means that it must not exist.
	PutIfMatch(ctx context.Context, key string, body []byte, old Version) (Version, error)
	// Get reads an object whole, with the version of exactly these bytes. ErrNotFound.
	Get(ctx context.Context, key string) (body []byte, v Version, err error)
	// GetRange fills dst with the object's bytes [from, from+len(dst)), or fails: with
	// ErrNotFound, or with ErrShort when the object ends before that.
	GetRange(ctx context.Context, key string, from int64, dst []byte) error
	// Head tells of an object without reading it. ErrNotFound.
	Head(ctx context.Context, key string) (Info, error)
	// List tells of at most limit objects whose keys begin with prefix and come after
	// after, in byte order of the keys; fewer than limit means that there are no more. A
	// store may be late to show what was put or deleted: never the truth about either.
	List(ctx context.Context, prefix, after string, limit int) ([]Info, error)
	// Delete removes objects; those that do not exist are fine. After an error any of them
	// may be gone. A key that is replaced with PutIfMatch must have no writer left.
	Delete(ctx context.Context, keys []string) error
}

// Version names one write of one key; empty means "does not exist". Two writes that differ in
// a byte never share one. In S3 it is the ETag, and two writes of equal bytes may share it:
// who counts on versions puts something into the body that was never there before, as
// every manifest does. In a directory no two writes share one.
type Version string

// Info is what Head and List tell of an object.
type Info struct {
	Key       string
	SizeBytes int64
	Version   Version
	// Modified is when it was put, by the clock of the store's server.
	Modified time.Time
}

// MaxKeyBytes is the longest key, without the root's own prefix: S3 allows 1,024 for both.
const MaxKeyBytes = 700

// What can be wrong. Error tells more.
var (
	// ErrExists: PutIfAbsent found the object.
	ErrExists = errors.New("the object exists")
	// ErrChanged: PutIfMatch found another version, or none, or one where none should be.
	ErrChanged = errors.New("the object is not the expected version")
	// ErrNotFound: no such object (the bucket or directory is there).
	ErrNotFound = errors.New("no such object")
	// ErrShort: the object ends before the range that was asked for.
	ErrShort = errors.New("the object is shorter than the range asked for")
	// ErrUnavailable: throttled, a server error, a timeout, a broken connection, a full
	// disk. Nothing was changed; it may work later.
	ErrUnavailable = errors.New("the object store is unavailable")
	// ErrDenied: credentials, permissions, a missing bucket or directory. Nothing was
	// changed; it will fail until somebody changes something, then heals by itself.
	ErrDenied = errors.New("the object store refuses")
	// ErrUnknownOutcome: a conditional put whose answer was lost. It may have been carried
	// out, or may be carried out later. Settle it by reading.
	ErrUnknownOutcome = errors.New("the outcome of the write is unknown")
	// ErrNoConditionalWrites: Probe found that the store does not keep the promises of
	// PutIfAbsent and PutIfMatch.
	ErrNoConditionalWrites = errors.New("the object store does not honour conditional writes")
	// ErrURL: what should name a store does not.
	ErrURL = errors.New("not the URL of an object store")
)

// Error is how an operation failed: on which store and key, and why.
type Error struct {
	Op    string // put, replace, get, head, list, delete, probe, open
	Store string // as Open was told, without parameters
	Key   string // empty when it concerns the whole store
	Kind  error  // one of the sentinels
	// Code is what the server called it ("SlowDown", "NoSuchBucket"), or empty.
	Code string
	// Attempts is how many requests were made.
	Attempts int
	// Cause says it in the words of what failed; may be nil.
	Cause error
}

// Error names the operation, the place, the kind and the cause.
func (e *Error) Error() string {
	place := e.Store
	if e.Key != "" {
		place += "/" + e.Key
	}
	text := fmt.Sprintf("%s %s: %v", e.Op, place, e.Kind)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	if e.Attempts > 1 {
		text += fmt.Sprintf(" (%d attempts)", e.Attempts)
	}
	return text
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// Class is what a request is for. Each has a budget of concurrent requests of its own, so
// that reads and clean-up never hold up uploads, nor the other way round.
type Class uint8

// The classes.
const (
	Upload Class = iota
	Read
	CleanUp
	classes
)

// String is the metric label.
func (c Class) String() string {
	return [...]string{"upload", "read", "cleanup"}[c]
}

type classKey struct{}

// WithClass says what the requests made with this context are for. Without it puts are
// Upload, gets and heads are Read, lists and deletes are CleanUp.
func WithClass(ctx context.Context, c Class) context.Context {
	return context.WithValue(ctx, classKey{}, c)
}

func classOf(ctx context.Context, otherwise Class) Class {
	if c, ok := ctx.Value(classKey{}).(Class); ok {
		return c
	}
	return otherwise
}

// Options are what a URL does not say. The zero value is right for a sidecar.
type Options struct {
	// AccessKeyID and SecretAccessKey are static credentials; empty: the SDK's own chain
	// (environment, shared files, web identity, container, instance).
	AccessKeyID, SecretAccessKey, SessionToken string
	// CreateDirectory makes a missing directory (never its parent). Without it a missing
	// one is ErrDenied: it may be a mount that is not there.
	CreateDirectory bool
	// RetryFor is how long an operation is tried before ErrUnavailable; 0: RetryFor. The
	// context may end it sooner.
	RetryFor time.Duration
	// AttemptTimeout is how long one request may take, plus its bytes at 2 MB/s; 0:
	// AttemptTimeout. A request on which no byte moves is given up after as long. Where
	// requests end like that, later ones have up to four times as long.
	AttemptTimeout time.Duration
	// Concurrency is the most requests at once per class; 0: MaxConcurrency.
	Concurrency int
	// Counters are counted into when not nil; several stores may share them.
	Counters *Counters
}

// Defaults of Options.
const (
	// RetryFor is short enough that callers learn of an outage and can say so, long enough
	// for every throttling to pass; they come back anyway.
	RetryFor = 30 * time.Second
	// AttemptTimeout is far above what a healthy store needs for a first byte.
	AttemptTimeout = 5 * time.Second
	// MaxConcurrency times the 8 MiB of an object bounds the memory of uploads.
	MaxConcurrency = 16
)

// CheckKey refuses what is not a key of every store; what passes stays below a store's root.
func CheckKey(key string) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return fmt.Errorf("a key has 1 to %d bytes, this one %d", MaxKeyBytes, len(key))
	}
	element := 0
	for i := 0; i <= len(key); i++ {
		if i == len(key) || key[i] == '/' {
			if element == 0 || element > maxElementBytes {
				return fmt.Errorf("key %q: an element has 1 to %d bytes", key, maxElementBytes)
			}
			element = 0
			continue
		}
		if !keyByte(key[i]) || (element == 0 && key[i] == '.') {
			return fmt.Errorf("key %q: byte %d is not allowed there", key, i)
		}
		element++
	}
	return nil
}

func validKey(key string) bool { return CheckKey(key) == nil }

const maxElementBytes = 200

func keyByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '.' || c == '='
}
