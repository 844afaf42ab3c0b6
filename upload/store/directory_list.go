package store

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func (d *directory) List(ctx context.Context, prefix, after string, limit int) ([]Info, error) {
	if _, err := d.begin(ctx, "list", "list", OpList, CleanUp); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, nil
	}
	l := &listing{d: d, prefix: prefix, after: after, limit: limit}
	if err := l.walk(ctx, ""); err != nil {
		return nil, d.fail("list", "", err)
	}
	return l.found, nil
}

type listing struct {
	d             *directory
	prefix, after string
	limit         int
	found         []Info
}

// walk lists the keys below dir, which is empty or ends in '/', in byte order.
func (l *listing) walk(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(l.d.root, filepath.FromSlash(dir)))
	if notThere(err) && dir != "" {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	// A directory's keys all continue with a '/', which sorts after '-' and '.'.
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		switch {
		case hidden(entry.Name()):
		case entry.IsDir():
			names = append(names, entry.Name()+"/")
		default:
			names = append(names, entry.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if len(l.found) >= l.limit {
			return nil
		}
		key := dir + name
		if strings.HasSuffix(name, "/") {
			if l.mayHold(key) {
				if err := l.walk(ctx, key); err != nil {
					return err
				}
			}
			continue
		}
		if err := l.add(key); err != nil {
			return err
		}
	}
	return nil
}

// mayHold says whether a key that begins with dir can be wanted.
func (l *listing) mayHold(dir string) bool {
	if !strings.HasPrefix(dir, l.prefix) && !strings.HasPrefix(l.prefix, dir) {
		return false
	}
	return dir > l.after || strings.HasPrefix(l.after, dir)
}

func (l *listing) add(key string) error {
	if !strings.HasPrefix(key, l.prefix) || key <= l.after || !validKey(key) {
		return nil
	}
	info, v, err := l.d.stat(filepath.Join(l.d.root, filepath.FromSlash(key)))
	switch {
	case err == nil:
		l.found = append(l.found, Info{Key: key, SizeBytes: info.Size(), Version: v, Modified: info.ModTime()})
	case notThere(err):
		err = nil // gone meanwhile
	}
	return err
}
