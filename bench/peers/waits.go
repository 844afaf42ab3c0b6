package peers

import (
	"context"
	"fmt"
	"net"
	"time"
)

// Servers take some time to answer.
const (
	startWithin = 30 * time.Second
	lookEvery   = 10 * time.Millisecond
)

// until calls try until it has no error.
func until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(lookEvery):
		}
	}
}

func dialUntil(ctx context.Context, socket string) (conn net.Conn, err error) {
	return conn, until(ctx, func() (err error) {
		conn, err = net.Dial("unix", socket)
		return err
	})
}
