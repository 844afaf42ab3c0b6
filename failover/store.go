package failover

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/walsidecar/walsidecar/upload/store"
)

// storeRetry is the wait between two tries at a store that does not answer.
const storeRetry = time.Second

// takesWrites returns once the store has taken a write. A takeover that cannot upload anything
// is better not begun: where it has to jump a window, each try would use one up.
func takesWrites(ctx context.Context, o *Options) error {
	if o.Objects == nil {
		return nil
	}
	return patiently(ctx, o, func() error {
		var name [12]byte
		_, _ = rand.Read(name[:]) // never fails
		key := "probe/" + hex.EncodeToString(name[:])
		_, err := o.Objects.PutIfAbsent(ctx, key, []byte("takeover"))
		if err == nil {
			_ = o.Objects.Delete(ctx, []string{key}) // left behind, it harms nobody
		}
		return err
	})
}

// proveStore proves in the background that the store honours conditional writes; proved waits
// for the result, once.
func proveStore(ctx context.Context, o *Options) (proved func() error) {
	if o.Objects == nil {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- patiently(ctx, o, func() error { return store.Probe(ctx, o.Objects) }) }()
	return func() error { return <-done }
}

// patiently does it again while the store does not answer, until ctx ends.
func patiently(ctx context.Context, o *Options, do func() error) error {
	for told := false; ; told = true {
		err := do()
		if err == nil || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnknownOutcome) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !told {
			o.Log.Warn("the object store does not answer; waiting for it", "store", o.Store, "error", err)
		}
		select {
		case <-time.After(storeRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
