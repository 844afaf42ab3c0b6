package sidecar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walsidecar/walsidecar/sidecar/settings"
	"github.com/walsidecar/walsidecar/upload/store"
)

// probeRetry is the wait between two tries of a probe that the store did not answer.
const probeRetry = time.Second

// probeEnds is how long a probe may go on once the start has failed.
const probeEnds = 2 * time.Second

// openStore opens the store that the settings name; nil for none, and where the operator
// starts without it. It makes no request to a bucket.
func (p *process) openStore(ctx context.Context, t *target) (store.Store, error) {
	if t.store == settings.NoStore || p.WithoutStore {
		return nil, nil
	}
	p.requests = &store.Counters{}
	s, err := store.Open(ctx, string(t.store), store.Options{
		CreateDirectory: t.missing || t.store == settings.DefaultFileStore, Counters: p.requests,
	})
	if err != nil {
		return nil, fmt.Errorf("WALSIDECAR_STORE: %w", err)
	}
	return s, nil
}

// probe proves in the background that the store honours conditional writes, while the log
// is recovered; the result comes once. A store that does not answer is asked again.
func (p *process) probe(ctx context.Context, s store.Store) <-chan error {
	done := make(chan error, 1)
	if s == nil {
		done <- nil
		return done
	}
	go func() {
		for {
			err := store.Probe(ctx, s)
			if err == nil || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnknownOutcome) {
				done <- err
				return
			}
			select {
			case <-time.After(probeRetry):
			case <-ctx.Done():
				done <- err
				return
			}
		}
	}()
	return done
}
