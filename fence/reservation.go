package fence

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Target is the reservation commands of one attachment of a device, one command a call
// and nothing verified: the kernel's, or a simulated target's (package simfence). An
// error that matches ErrConflict says that the device refused and changed nothing.
type Target interface {
	// Register gives this attachment the key new. old is its present key, 0 where it has
	// none; with ignore, whatever it has is replaced.
	Register(old, new Key, ignore bool) error

	// Unregister takes this attachment's key own away, and with it its reservation.
	Unregister(own Key) error

	// Reserve takes the reservation, of type WriteExclusive.
	Reserve(own Key) error

	// Preempt takes reservation and registration of victim away and gives this attachment
	// the reservation, of type WriteExclusive. With abort it returns once no write of the
	// victim is on its way any more.
	Preempt(own, victim Key, abort bool) error

	// Clear takes the reservation and every registration away.
	Clear(own Key) error

	// Read reads the status.
	Read() (Status, error)

	// Close ends the use of the device; its reservations stay.
	Close() error
}

// Fence is what keeps others from writing to one device. The calls that change something
// are for ModePR alone, and return ErrUnsupported in the other modes; each is verified by
// reading the device's state back. Its methods may be called from many goroutines; they
// take turns.
type Fence struct {
	mu     sync.Mutex
	mode   Mode
	caps   Capabilities
	target Target // only in ModePR
}

// New makes the fence of a device with reservations.
func New(t Target, caps Capabilities) *Fence { return &Fence{mode: ModePR, caps: caps, target: t} }

// Without makes the fence of a device without reservations, or of a file: mode is
// ModeAttach or ModeLock.
func Without(mode Mode, caps Capabilities) *Fence { return &Fence{mode: mode, caps: caps} }

// Mode is how the device is fenced.
func (f *Fence) Mode() Mode { return f.mode }

// Capabilities is what the device can do.
func (f *Fence) Capabilities() Capabilities { return f.caps }

// Read reads the status; without reservations it is empty.
func (f *Fence) Read() (Status, error) {
	if f.mode != ModePR {
		return Status{}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target.Read()
}

// Close ends the use of the device. What it holds stays held.
func (f *Fence) Close() error {
	if f.target == nil {
		return nil
	}
	return f.target.Close()
}

// Register registers key for this attachment, in the place of any key that it has. Where
// that one held the reservation, key holds it now.
func (f *Fence) Register(key Key) error {
	err := f.change(fmt.Sprintf("register key %s", key), func(t Target) error {
		err := t.Register(0, key, false)
		if errors.Is(err, ErrConflict) {
			// The attachment has a key from an earlier start. Old key 1: the kernel
			// takes 0 for "not registered" and asks NVMe for a new registration.
			err = t.Register(1, key, true)
		}
		return err
	}, func(st Status) bool { return st.Has(key) && (f.caps.PersistsThroughPower != Yes || st.Persists != No) })
	if err == nil || !errors.Is(err, ErrNotVerified) {
		return err
	}
	if st, readErr := f.Read(); readErr == nil && st.Has(key) && f.caps.PersistsThroughPower == Yes && st.Persists == No {
		return fmt.Errorf("register key %s: %w: the device says that it can make them persist, and after the registration that it does not", key, ErrVolatile)
	}
	return err
}

// Replace replaces this attachment's key old by key; a reservation that it holds stays
// held. ErrConflict says that this attachment does not have old: with the holder's key for
// old it proves whether this attachment is the holder. With old == key it asks "am I still
// in", and moves the generation on.
func (f *Fence) Replace(old, key Key) error {
	return f.change(fmt.Sprintf("replace key %s by %s", old, key), func(t Target) error {
		return t.Register(old, key, false)
	}, func(st Status) bool { return st.Has(key) && (old == key || !st.Has(old) && st.Holder != old) })
}

// Reserve takes the reservation that nobody holds; own is this attachment's key.
// ErrConflict: another holds it, or own is not registered.
func (f *Fence) Reserve(own Key) error {
	return f.change("reserve with key "+own.String(), func(t Target) error { return t.Reserve(own) }, holds(own))
}

// Preempt takes the reservation from victim, whose registration ends. With abort, and a nil
// error, no write of the victim is on its way any more; else those that the device had
// accepted may still land. ErrConflict: victim has no registration any more, or own never
// had.
func (f *Fence) Preempt(own, victim Key, abort bool) error {
	what := "preempt"
	if abort {
		what = "preempt and abort"
	}
	return f.change(fmt.Sprintf("%s key %s with key %s", what, victim, own), func(t Target) error { return t.Preempt(own, victim, abort) },
		func(st Status) bool { return holds(own)(st) && !st.Has(victim) })
}

// Withdraw takes this attachment's key own away, and any reservation that it holds. It is
// for a registration that came to nothing.
func (f *Fence) Withdraw(own Key) error {
	return f.change("unregister key "+own.String(), func(t Target) error { return t.Unregister(own) },
		func(st Status) bool { return !st.Has(own) && st.Holder != own })
}

// Clear takes the reservation from its holder, which must be expect, and ends every
// registration: the device is then open to all. It first preempts expect with key own, so
// that a holder that came in between is not cleared away; expect 0 says that nobody holds
// it. ErrConflict: the holder is another.
func (f *Fence) Clear(own, expect Key) error {
	st, err := f.Read()
	if err != nil {
		return err
	}
	if st.Holder != expect {
		return fmt.Errorf("%w: the holder is %s, not %s", ErrConflict, st.Holder, expect)
	}
	if st.Type == NoReservation && len(st.Keys) == 0 {
		return nil
	}
	if err := f.Register(own); err != nil {
		return err
	}
	if st, err = f.Read(); err != nil {
		return err
	}
	// With own for a holder, this attachment held under expect; with 0, all registrants
	// hold or nobody does.
	if st.Holder != 0 && st.Holder != own {
		if err := f.Preempt(own, expect, false); err != nil {
			return err
		}
	}
	return f.change("clear", func(t Target) error { return t.Clear(own) },
		func(st Status) bool { return len(st.Keys) == 0 && st.Type == NoReservation })
}

// change carries out a command and verifies what came of it.
func (f *Fence) change(what string, command func(Target) error, shows func(Status) bool) error {
	if f.mode != ModePR {
		return fmt.Errorf("%s: %w: this log is fenced by %s", what, ErrUnsupported, f.mode)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := command(f.target); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	st, err := f.target.Read()
	if err != nil {
		return fmt.Errorf("%s: read back: %w", what, err)
	}
	if !shows(st) {
		return fmt.Errorf("%s: %w: holder %s, type %s, keys %v, generation %d", what, ErrNotVerified, st.Holder, st.Type, st.Keys, st.Generation)
	}
	return nil
}

// holds is that own is registered and holds Write Exclusive.
func holds(own Key) func(Status) bool {
	return func(st Status) bool {
		return st.Type == WriteExclusive && st.Holder == own && slices.Contains(st.Keys, own)
	}
}
