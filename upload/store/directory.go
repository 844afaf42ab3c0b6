package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// directory is a store in a directory, on a local filesystem or NFS. An object is a plain
// file with the object's bytes and nothing else, at the key's own path.
//
// No lock is taken: what decides is always one link(2) to a name that must not exist yet,
// which every filesystem and every NFS server carries out atomically, and which a process
// that slept through its lock's lease cannot undo. A new object is linked to its own name;
// the next generation of one that is replaced, see generations.go, to the next number.
//
// Names with a leading dot are the store's own: `.tmp` has the files being written (made
// durable before they are linked), `.g-NAME` the generations of NAME.
type directory struct {
	root     string
	inode    uint64 // of root. Not its device: that of a filesystem may change with every mount
	counters *Counters
	tidied   sync.Once
}

// temporaryAge is when a file in .tmp belongs to nobody: no put takes that long.
const temporaryAge = time.Hour

func openDirectory(root string, o Options) (*directory, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, &Error{Op: "open", Store: root, Kind: ErrURL, Cause: err}
	}
	d := &directory{root: root, counters: o.Counters}
	if d.counters == nil {
		d.counters = &Counters{}
	}
	if o.CreateDirectory {
		if err := os.Mkdir(root, 0o755); err == nil {
			err = syncDirectory(filepath.Dir(root))
			if err != nil {
				return nil, d.fail("open", "", err)
			}
		} else if !errors.Is(err, fs.ErrExist) {
			return nil, d.fail("open", "", err)
		}
	}
	info, err := os.Stat(root)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: root, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, d.fail("open", "", err)
	}
	d.inode = inodeOf(info)
	return d, nil
}

func inodeOf(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}

// errOtherDirectory is what a filesystem leaves behind that was unmounted: objects that were
// put there would be gone with the next mount.
var errOtherDirectory = errors.New("the directory is another one than at the start: is its filesystem mounted?")

// String is the directory's absolute path.
func (d *directory) String() string { return d.root }

func (d *directory) PutIfAbsent(ctx context.Context, key string, body []byte) (Version, error) {
	path, err := d.begin(ctx, "put", key, OpPut, Upload)
	if err != nil {
		return "", err
	}
	v, err := d.putFirst(path, body)
	switch {
	case errors.Is(err, fs.ErrExist):
		return "", &Error{Op: "put", Store: d.root, Key: key, Kind: ErrExists}
	case err != nil:
		return "", d.fail("put", key, err)
	}
	d.sent(ctx, len(body))
	return v, nil
}

// putFirst makes the file, or fails with fs.ErrExist.
func (d *directory) putFirst(path string, body []byte) (Version, error) {
	temporary, err := d.writeTemporary(body)
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary)
	if err := d.makeDirectories(filepath.Dir(path)); err != nil {
		return "", err
	}
	info, err := linkNew(temporary, path)
	if err != nil {
		return "", err
	}
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return "", &unknownError{err}
	}
	return versionOf(0, info), nil
}

// unknownError is of a link that may have been made, or may not survive a crash.
type unknownError struct{ err error }

func (e *unknownError) Error() string { return e.err.Error() }
func (e *unknownError) Unwrap() error { return e.err }

// linkNew gives the file at from the name to, if nothing has that name; else fs.ErrExist.
func linkNew(from, to string) (fs.FileInfo, error) {
	err := os.Link(from, to)
	info, statErr := os.Stat(from)
	if statErr == nil && twoNames(info) {
		// Also after an error: an NFS client that repeats a link whose answer was lost is
		// told that the name exists. The number of links says whose it is.
		return info, nil
	}
	if err == nil {
		return nil, &unknownError{statErr}
	}
	for _, nothingDone := range []error{fs.ErrExist, fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.ENOSPC,
		syscall.EDQUOT, syscall.EROFS, syscall.EXDEV, syscall.EMLINK, syscall.EOPNOTSUPP, syscall.ENAMETOOLONG} {
		if errors.Is(err, nothingDone) {
			return nil, err
		}
	}
	return nil, &unknownError{err}
}

func twoNames(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 2
}

func (d *directory) Get(ctx context.Context, key string) ([]byte, Version, error) {
	path, err := d.begin(ctx, "get", key, OpGet, Read)
	if err != nil {
		return nil, "", err
	}
	f, v, err := d.open(path)
	if err != nil {
		return nil, "", d.fail("get", key, err)
	}
	defer f.Close()
	body, err := io.ReadAll(f)
	if err != nil {
		return nil, "", d.fail("get", key, err)
	}
	d.counters.ReceivedBytes[classOf(ctx, Read)].Add(uint64(len(body)))
	return body, v, nil
}

func (d *directory) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	path, err := d.begin(ctx, "get", key, OpGet, Read)
	if err != nil || len(dst) == 0 {
		return err
	}
	f, _, err := d.open(path)
	if err != nil {
		return d.fail("get", key, err)
	}
	defer f.Close()
	n, err := f.ReadAt(dst, from)
	d.counters.ReceivedBytes[classOf(ctx, Read)].Add(uint64(n))
	switch {
	case n == len(dst):
		return nil
	case errors.Is(err, io.EOF):
		return short("get", d.root, key, from, len(dst))
	}
	return d.fail("get", key, err)
}

func short(op, store, key string, from int64, n int) error {
	return &Error{Op: op, Store: store, Key: key, Kind: ErrShort,
		Cause: fmt.Errorf("bytes [%d, %d)", from, from+int64(n))}
}

func (d *directory) Head(ctx context.Context, key string) (Info, error) {
	path, err := d.begin(ctx, "head", key, OpHead, Read)
	if err != nil {
		return Info{}, err
	}
	info, v, err := d.stat(path)
	if err != nil {
		return Info{}, d.fail("head", key, err)
	}
	return Info{Key: key, SizeBytes: info.Size(), Version: v, Modified: info.ModTime()}, nil
}

func (d *directory) Delete(ctx context.Context, keys []string) error {
	touched := map[string]bool{}
	for _, key := range keys {
		path, err := d.begin(ctx, "delete", key, OpDelete, CleanUp)
		if err != nil {
			return err
		}
		if err := d.remove(path); err != nil {
			return d.fail("delete", key, err)
		}
		touched[filepath.Dir(path)] = true
	}
	for path := range touched {
		if err := syncDirectory(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d.fail("delete", "", err)
		}
	}
	return nil
}

func (d *directory) remove(path string) error {
	// In this order, so that what is half removed is never taken for an object.
	if err := d.removeGenerations(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !notThere(err) {
		return err
	}
	return nil
}

// begin checks what every operation checks, counts, and gives the key's path.
func (d *directory) begin(ctx context.Context, op, key string, counted Operation, class Class) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", &Error{Op: op, Store: d.root, Key: key, Kind: ErrDenied, Cause: err}
	}
	if err := ctx.Err(); err != nil {
		return "", &Error{Op: op, Store: d.root, Key: key, Kind: ErrUnavailable, Cause: err}
	}
	if info, err := os.Stat(d.root); err == nil && inodeOf(info) != d.inode {
		return "", d.fail(op, key, errOtherDirectory)
	}
	if counted == OpPut {
		d.tidied.Do(d.removeTemporary) // not at the start: who only reads changes nothing
	}
	d.counters.Requests[counted][classOf(ctx, class)].Add(1)
	return filepath.Join(d.root, filepath.FromSlash(key)), nil
}

func (d *directory) sent(ctx context.Context, n int) {
	d.counters.SentBytes[classOf(ctx, Upload)].Add(uint64(n))
	d.counters.lastTrouble.Store(nil)
}

// notThere: a missing file, or a file where the path needs a directory.
func notThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// fail says which of the sentinels an error of the filesystem is.
func (d *directory) fail(op, key string, err error) error {
	var unknown *unknownError
	e := &Error{Op: op, Store: d.root, Key: key, Kind: ErrUnavailable, Cause: err}
	_, rootErr := os.Stat(d.root)
	switch {
	case errors.As(err, &unknown):
		e.Kind = ErrUnknownOutcome
	case notThere(err) && rootErr != nil:
		e.Kind, e.Cause = ErrDenied, fmt.Errorf("the directory is missing: %w", rootErr)
	case notThere(err) && (op == "get" || op == "head"):
		return &Error{Op: op, Store: d.root, Key: key, Kind: ErrNotFound}
	default:
		for _, lasting := range []error{fs.ErrPermission, fs.ErrExist, syscall.EROFS, syscall.ENOTDIR, syscall.EISDIR,
			syscall.EXDEV, syscall.EOPNOTSUPP, errGenerationsLost} {
			if errors.Is(err, lasting) {
				e.Kind = ErrDenied
			}
		}
	}
	d.counters.lastTrouble.Store(&Trouble{At: time.Now(), Error: e})
	return e
}

// writeTemporary makes a file in .tmp with this body, on stable media, and gives its path.
func (d *directory) writeTemporary(body []byte) (path string, err error) {
	var name [12]byte
	_, _ = rand.Read(name[:])
	path = filepath.Join(d.root, temporaryDirectory, hex.EncodeToString(name[:]))
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr // NFS and quotas report here
	}
	if err != nil {
		os.Remove(path)
		return "", err
	}
	return path, nil
}

const temporaryDirectory = ".tmp"

// removeTemporary removes what a crash left in .tmp. Ages are by the clock of the filesystem.
func (d *directory) removeTemporary() {
	entries, err := os.ReadDir(filepath.Join(d.root, temporaryDirectory))
	if err != nil || len(entries) == 0 {
		return
	}
	mark, err := d.writeTemporary(nil)
	if err != nil {
		return // read-only, or full: then another time
	}
	defer os.Remove(mark)
	now, err := os.Stat(mark)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && now.ModTime().Sub(info.ModTime()) > temporaryAge {
			os.RemoveAll(filepath.Join(d.root, temporaryDirectory, entry.Name()))
		}
	}
}

// makeDirectories is os.MkdirAll below the root (never the root itself), durable.
func (d *directory) makeDirectories(path string) error {
	if _, err := os.Stat(path); err == nil || path == d.root {
		return err
	}
	if err := d.makeDirectories(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

func syncDirectory(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// hidden: the store's own names.
func hidden(name string) bool { return strings.HasPrefix(name, ".") }
