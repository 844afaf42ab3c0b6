package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A file that is replaced keeps its newest generations in `.g-NAME`, one file each, named by
// a number that only grows. Generation 0 is the file NAME itself; once there is a higher
// one, NAME holds forwardText and only says that the object exists.
//
// Replacing generation n is linking the new file as n+1: of all who try, one succeeds. Old
// generations are removed, but never the keptGenerations newest. So after its link a writer
// looks again: while the newest is below n+1+keptGenerations, n+1 was never removed, so
// nobody had it before, so n was the newest when the link was made. Otherwise the writer
// may have slept for so long that it linked a number which had come and gone: then the
// outcome is unknown, and whoever reads sees the newest all the same.

const (
	generationPrefix = ".g-"
	// keptGenerations is how many replacements may happen between two steps of one writer
	// before that one is told that it does not know.
	keptGenerations = 32
	forwardText     = "This object is replaced over and over; what is valid is the file with the highest number in the\n" +
		"directory with this name and .g- before it.\n"
)

func generationsOf(path string) string {
	return filepath.Join(filepath.Dir(path), generationPrefix+filepath.Base(path))
}

func generationPath(path string, n uint64) string {
	if n == 0 {
		return path
	}
	return filepath.Join(generationsOf(path), fmt.Sprintf("%016x", n))
}

// versionOf names a write: number, inode and time, so that even a key that was deleted and
// made again does not come back to an old version.
func versionOf(n uint64, info fs.FileInfo) Version {
	var inode uint64
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = stat.Ino
	}
	return Version(fmt.Sprintf("%x-%x-%x", n, inode, info.ModTime().UnixNano()))
}

// generations lists the numbers above 0, newest one first in newest.
func generations(path string) (newest uint64, all []uint64, err error) {
	f, err := os.Open(generationsOf(path)) // opening it makes an NFS client look again
	if notThere(err) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && !notThere(err) {
		return 0, nil, err
	}
	for _, name := range names {
		n, err := strconv.ParseUint(name, 16, 64)
		if err != nil || len(name) != 16 {
			continue
		}
		all = append(all, n)
		newest = max(newest, n)
	}
	return newest, all, nil
}

// errGenerationsLost: the file says that there are generations, and there are none.
var errGenerationsLost = errors.New("its generations are missing (the directory with this name and " +
	generationPrefix + " before it)")

// open opens the newest generation. fs.ErrNotExist when there is no object.
func (d *directory) open(path string) (*os.File, Version, error) {
	for {
		n, _, err := generations(path)
		if err != nil {
			return nil, "", err
		}
		f, info, err := openRegular(generationPath(path, n))
		if errors.Is(err, syscall.ESTALE) || (n > 0 && notThere(err)) {
			if _, gone := os.Lstat(path); notThere(gone) {
				return nil, "", fs.ErrNotExist
			}
			continue // replaced and removed meanwhile
		}
		if err != nil {
			return nil, "", err
		}
		if n == 0 && info.Size() == int64(len(forwardText)) {
			text := make([]byte, len(forwardText))
			if _, err = f.ReadAt(text, 0); err == nil && string(text) == forwardText {
				err = errGenerationsLost
			}
			if newest, _, listErr := generations(path); listErr == nil && newest > 0 {
				f.Close()
				continue // replaced for the first time between the two looks
			}
		}
		if err != nil {
			f.Close()
			return nil, "", err
		}
		return f, versionOf(n, info), nil
	}
}

// openRegular opens a file; a directory (of keys) is no object.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func (d *directory) stat(path string) (fs.FileInfo, Version, error) {
	f, v, err := d.open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	info, err := f.Stat()
	return info, v, err
}

func (d *directory) PutIfMatch(ctx context.Context, key string, body []byte, old Version) (Version, error) {
	path, err := d.begin(ctx, "replace", key, OpPut, Upload)
	if err != nil {
		return "", err
	}
	changed := &Error{Op: "replace", Store: d.root, Key: key, Kind: ErrChanged}
	var v Version
	if old == "" {
		v, err = d.putFirst(path, body)
	} else {
		v, err = d.putNext(path, body, old)
	}
	var unknown *Error
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, errGeneration):
		return "", changed
	case errors.As(err, &unknown):
		unknown.Key = key
		return "", unknown
	case err != nil:
		return "", d.fail("replace", key, err)
	}
	d.sent(ctx, len(body))
	return v, nil
}

// errGeneration: the newest generation is another one.
var errGeneration = errors.New("another generation")

func (d *directory) putNext(path string, body []byte, old Version) (Version, error) {
	_, v, err := d.stat(path)
	if notThere(err) {
		if _, rootErr := os.Stat(d.root); rootErr != nil {
			return "", err
		}
		return "", errGeneration
	}
	if err != nil {
		return "", err
	}
	if v != old {
		return "", errGeneration
	}
	var n uint64
	if _, err := fmt.Sscanf(string(v), "%x-", &n); err != nil {
		return "", err
	}
	temporary, err := d.writeTemporary(body)
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary)
	return d.linkGeneration(path, temporary, n+1)
}

// linkGeneration makes the file at temporary generation n of path, if none ever was.
func (d *directory) linkGeneration(path, temporary string, n uint64) (Version, error) {
	if err := d.makeDirectories(generationsOf(path)); err != nil {
		return "", err
	}
	info, err := linkNew(temporary, generationPath(path, n))
	if err != nil {
		return "", err
	}
	newest, all, err := generations(path)
	if err == nil && newest >= n+keptGenerations {
		return "", &Error{Op: "replace", Store: d.root, Kind: ErrUnknownOutcome,
			Cause: fmt.Errorf("%d replacements by others meanwhile", newest-n)}
	}
	if err == nil {
		err = syncDirectory(generationsOf(path))
	}
	if err != nil {
		return "", &unknownError{err}
	}
	for _, other := range all {
		if other+keptGenerations <= newest {
			os.Remove(generationPath(path, other))
		}
	}
	if n == 1 {
		d.forward(path)
	}
	return versionOf(n, info), nil
}

// forward makes the file itself say where the object is. Only for people and for tools that
// copy: readers look at the generations first, so a failure does no harm.
func (d *directory) forward(path string) {
	if temporary, err := d.writeTemporary([]byte(forwardText)); err == nil {
		if os.Rename(temporary, path) != nil {
			os.Remove(temporary)
		}
	}
}

func (d *directory) removeGenerations(path string) error {
	var name [12]byte
	_, _ = rand.Read(name[:])
	aside := filepath.Join(d.root, temporaryDirectory, hex.EncodeToString(name[:]))
	err := os.Rename(generationsOf(path), aside)
	if notThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(aside)
}
