package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// ProbePrefix begins the keys of all probes of a store.
	ProbePrefix = "probe/"
	// probeNameBytes of chance name a probe.
	probeNameBytes = 12
	// probeWriters race for one object in each of probeRounds rounds. A store that only
	// looks before it writes lets several win within the first rounds.
	probeWriters, probeRounds = 8, 3
	// probeTries is how often the probe begins again after a lost answer.
	probeTries = 5
)

// Probe proves that a store keeps what Store promises of conditional writes, with objects
// of its own below "probe/" that it removes again: some forty small requests. An error that
// is ErrNoConditionalWrites names the check that failed; others say why it could not be
// carried out.
func Probe(ctx context.Context, s Store) (err error) {
	for range probeTries {
		var name [probeNameBytes]byte
		_, _ = rand.Read(name[:])
		p := &probe{s: s, ctx: ctx, key: ProbePrefix + hex.EncodeToString(name[:])}
		err = p.run()
		if deleteErr := p.remove(); err == nil {
			err = deleteErr
		}
		if !errors.Is(err, ErrUnknownOutcome) {
			break
		}
	}
	if err == nil {
		if _, _, getErr := s.Get(ctx, ProbePrefix+"gone"); !errors.Is(getErr, ErrNotFound) {
			err = broken("a read of what was never put", ErrNotFound, getErr)
		}
	}
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	place := "the store"
	if named, ok := s.(fmt.Stringer); ok {
		place = named.String()
	}
	kind := ErrUnavailable
	if errors.Is(err, ErrNoConditionalWrites) {
		kind = ErrNoConditionalWrites
	}
	return &Error{Op: "probe", Store: place, Kind: kind, Cause: err}
}

// IsProbe reports whether a key is that of a probe. What is there for longer than a probe takes
// was left by one whose process was killed.
func IsProbe(key string) bool {
	name, below := strings.CutPrefix(key, ProbePrefix)
	if b, err := hex.DecodeString(name); err != nil || len(b) != probeNameBytes {
		return false
	}
	return below
}

// brokenError is a check that failed.
type brokenError struct{ text string }

func (e *brokenError) Error() string        { return e.text }
func (e *brokenError) Is(target error) bool { return target == ErrNoConditionalWrites }

// broken says that a check gave something else than it must. What prevents the check is
// passed on as it is.
func broken(check string, want, got error) error {
	for _, prevents := range []error{ErrUnavailable, ErrDenied, ErrUnknownOutcome, ErrNoConditionalWrites} {
		if errors.Is(got, prevents) {
			return got
		}
	}
	if got == nil {
		return &brokenError{fmt.Sprintf("%s: succeeded, must fail with %q", check, want)}
	}
	return &brokenError{fmt.Sprintf("%s: failed with %q", check, got)}
}

type probe struct {
	s   Store
	ctx context.Context
	key string
}

// removeFor is how long a probe that was cut off goes on to remove what it has put.
const removeFor = 2 * time.Second

func (p *probe) remove() error {
	ctx := p.ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), removeFor)
		defer cancel()
	}
	return p.s.Delete(ctx, []string{p.key})
}

func (p *probe) run() error {
	first, err := p.s.PutIfAbsent(p.ctx, p.key, []byte("first"))
	if err != nil {
		return broken("a put of a new object", nil, err)
	}
	if _, err := p.s.PutIfAbsent(p.ctx, p.key, []byte("again")); !errors.Is(err, ErrExists) {
		return broken("a put if absent of an object that exists", ErrExists, err)
	}
	if _, err := p.s.PutIfMatch(p.ctx, p.key, []byte("again"), ""); !errors.Is(err, ErrChanged) {
		return broken("a put if absent of an object that exists", ErrChanged, err)
	}
	if err := p.expect("first", first); err != nil {
		return err
	}
	second, err := p.s.PutIfMatch(p.ctx, p.key, []byte("second"), first)
	if err != nil {
		return broken("a put if match with the current version", nil, err)
	}
	if _, err := p.s.PutIfMatch(p.ctx, p.key, []byte("stale"), first); !errors.Is(err, ErrChanged) {
		return broken("a put if match with an old version", ErrChanged, err)
	}
	if err := p.expect("second", second); err != nil {
		return err
	}
	for round := range probeRounds {
		if second, err = p.race(round, second); err != nil {
			return err
		}
	}
	return nil
}

// expect reads what must be there.
func (p *probe) expect(body string, v Version) error {
	got, gotVersion, err := p.s.Get(p.ctx, p.key)
	if err != nil {
		return broken("a read of what was just written", nil, err)
	}
	if string(got) != body || gotVersion != v {
		return &brokenError{fmt.Sprintf("a read gave %q in version %s, must give %q in version %s", got, gotVersion, body, v)}
	}
	return nil
}

// race lets writers replace one version at once; one must win.
func (p *probe) race(round int, old Version) (Version, error) {
	versions, errs := make([]Version, probeWriters), make([]error, probeWriters)
	var all sync.WaitGroup
	for i := range probeWriters {
		all.Go(func() {
			versions[i], errs[i] = p.s.PutIfMatch(p.ctx, p.key, racer(round, i), old)
		})
	}
	all.Wait()
	winner, unknown := -1, error(nil)
	for i, err := range errs {
		switch {
		case errors.Is(err, ErrUnknownOutcome):
			unknown = err // it must have lost, if another won: what is read then tells
		case err == nil && winner >= 0:
			return "", &brokenError{fmt.Sprintf("%d writers replaced the same version at once, and several succeeded", probeWriters)}
		case err == nil:
			winner = i
		case !errors.Is(err, ErrChanged):
			return "", broken("one of several puts if match at once", ErrChanged, err)
		}
	}
	if winner < 0 && unknown != nil {
		return "", unknown // it may still be on its way
	}
	if winner < 0 {
		return "", &brokenError{fmt.Sprintf("%d writers replaced the same version at once, and none succeeded", probeWriters)}
	}
	return versions[winner], p.expect(string(racer(round, winner)), versions[winner])
}

func racer(round, i int) []byte { return fmt.Appendf(nil, "round %d writer %d", round, i) }
