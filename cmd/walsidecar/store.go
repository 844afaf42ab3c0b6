package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
)

// storeFlags are the flags of a command that looks into an object store by itself. The
// environment does not choose the store: what a sidecar is set to is not what is asked for.
type storeFlags struct {
	url  string
	node string
}

func (f *storeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.url, "store", "", "ask no sidecar, but read this object store: s3://bucket/prefix?endpoint=…&region=…&path_style=true, or a directory")
	cmd.Flags().StringVar(&f.node, "node", "", "with --store: the node whose log it is")
}

// given reports whether the store is to be read.
func (f *storeFlags) given(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("store") || cmd.Flags().Changed("node")
}

// open opens the store that the flags name, and returns it with the name of the node.
func (f *storeFlags) open(ctx context.Context) (store.Store, string, error) {
	if f.url == "" || f.node == "" {
		return nil, "", usagef("--store and --node go together: which store, and whose log in it")
	}
	s, err := settings.LoadFlags(map[string]string{"store": f.url, "node": f.node})
	if err != nil {
		return nil, "", err
	}
	if s.Store == settings.NoStore {
		return nil, "", usagef("--store none names no store")
	}
	opened, err := store.Open(ctx, f.url, store.Options{})
	return opened, f.node, err
}

// openArchive opens the log that the flags name, for reading.
func (f *storeFlags) openArchive(ctx context.Context) (*upload.Archive, error) {
	s, node, err := f.open(ctx)
	if err != nil {
		return nil, err
	}
	a, err := upload.OpenArchive(ctx, s, node, nil)
	if errors.Is(err, upload.ErrNoManifest) {
		return nil, fmt.Errorf("%s: %w: is the node's name right, and the store's prefix?", f.url, err)
	}
	return a, err
}

// onlyWithout refuses flags that make no sense when a store is read.
func (f *storeFlags) onlyWithout(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return usagef("--%s needs a sidecar, and --store asks none", name)
		}
	}
	return nil
}

// watchedStore shows on a terminal how much was read.
type watchedStore struct {
	store.Store
	app   *app
	read  atomic.Int64
	shown atomic.Int64 // when, ns since the Unix epoch
}

// showEvery is the least time between two changes of what is shown.
const showEvery = 200 * time.Millisecond

// Get counts what it reads.
func (s *watchedStore) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	body, version, err := s.Store.Get(ctx, key)
	s.count(len(body))
	return body, version, err
}

// GetRange counts what it reads.
func (s *watchedStore) GetRange(ctx context.Context, key string, from int64, dst []byte) error {
	err := s.Store.GetRange(ctx, key, from, dst)
	s.count(len(dst))
	return err
}

func (s *watchedStore) count(n int) {
	read, now, shown := s.read.Add(int64(n)), time.Now().UnixNano(), s.shown.Load()
	if now-shown >= int64(showEvery) && s.shown.CompareAndSwap(shown, now) {
		s.app.progress("read %d MiB of the store", read>>20)
	}
}
