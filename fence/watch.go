package fence

import (
	"context"
	"errors"
	"fmt"
)

// unreadableTries is how many checks in a row may fail to read the status. Not knowing is
// not being fenced, but a device that answers nothing is no device to serve from.
const unreadableTries = 3

// Check asks once whether key still holds the fence. ErrFenced names the one who took it;
// other errors say that the status could not be read. In the modes without reservations it
// returns nil.
func Check(f *Fence, key Key) error {
	if f.Mode() != ModePR {
		return nil
	}
	st, err := f.Read()
	switch {
	case err != nil:
		return err
	case st.Type == NoReservation:
		return fmt.Errorf("%w: nobody holds the reservation any more: a target reset, or `fence clear`", ErrFenced)
	case st.Type != WriteExclusive:
		return fmt.Errorf("%w: the reservation is now %s, held by key %s", ErrFenced, st.Type, st.Holder)
	case st.Holder != key:
		return fmt.Errorf("%w: key %s took the reservation", ErrFenced, st.Holder)
	}
	return nil
}

// Beat registers key anew, which moves the device's generation on: others see that
// somebody is at work. It is for a start between Acquire and its first frame. ErrFenced
// says that the registration is gone.
func Beat(f *Fence, key Key) error {
	if f.Mode() != ModePR {
		return nil
	}
	if err := f.Replace(key, key); err != nil {
		if lost := Check(f, key); lost != nil {
			return lost
		}
		return err
	}
	return Check(f, key)
}

// Watch calls Beat, or Check where beat is false, every HeartbeatEvery until the fence is
// lost, the status could not be read three times in a row, or ctx ends: then it returns
// nil. In the modes without reservations it returns nil at once. It has the fence to
// itself.
func Watch(ctx context.Context, f *Fence, key Key, clock Clock, beat bool) error {
	if f.Mode() != ModePR {
		return nil
	}
	look := Check
	if beat {
		look = Beat
	}
	failed := 0
	for {
		if err := clock.Sleep(ctx, HeartbeatEvery); err != nil {
			return nil //nolint:nilerr // it was told to end
		}
		err := look(f, key)
		if err == nil {
			failed = 0
			continue
		}
		if failed++; isLoss(err) || failed == unreadableTries {
			return err
		}
	}
}

// isLoss reports whether err says for certain that the fence is lost.
func isLoss(err error) bool { return errors.Is(err, ErrFenced) }
