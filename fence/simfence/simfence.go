// Package simfence is a simulated target with persistent reservations, as NVMe and SCSI
// targets really behave (tools/prlab/README.md has the results that it follows), without
// clocks, goroutines or chance. It goes with a simulated disk, whose writes it fences.
package simfence

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// ErrDead is a command of a host that has crashed.
var ErrDead = errors.New("this host has crashed")

// Config describes a target.
type Config struct {
	Transport  fence.Transport // fence.NVMe or fence.SCSI: they differ in what they refuse
	Disk       *simdev.Disk    // fenced along; nil: commands alone
	Volatile   bool            // Reset forgets registrations and reservation
	AbortHangs bool            // preempt-and-abort takes effect and is never answered
}

// Target is a device that several hosts are attached to. A host's registration outlives
// its crashes: it belongs to the host's name.
type Target struct {
	mu         sync.Mutex
	config     Config
	keys       map[string]fence.Key // by host
	order      []string             // of registration
	holder     string
	kind       fence.Type
	generation uint32
	views      map[string][]*simdev.View // each host's, with those of its crashed processes
}

// New makes a target that nobody is registered with.
func New(c Config) *Target {
	return &Target{config: c, keys: map[string]fence.Key{}, views: map[string][]*simdev.View{}}
}

// Attachment is one host's side of a target. It implements fence.Target.
type Attachment struct {
	// Before, unless nil, is called before each command with its name; After is called
	// after each that was carried out. An error is what the command returns: with After it
	// was carried out all the same, and its answer lost.
	Before, After func(command string) error

	target *Target
	host   string
	dead   bool
}

var _ fence.Target = (*Attachment)(nil)

// Attach attaches a host by name, or a new process of a host that was attached before.
// view is its view of the disk, nil without one.
func (t *Target) Attach(host string, view *simdev.View) *Attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	if view != nil {
		t.views[host] = append(t.views[host], view)
	}
	if t.kind != fence.NoReservation && t.holder == host {
		t.fenceDisk()
	}
	return &Attachment{target: t, host: host}
}

// Reset is a power loss of the target, or a reset that its storage does not survive:
// where it is volatile, everything is forgotten, and writes of all hosts get through.
func (t *Target) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.config.Volatile {
		return
	}
	clear(t.keys)
	t.order, t.generation = nil, 0
	t.release()
}

// Holder is the name of the host that holds the reservation; "" when nobody does.
func (t *Target) Holder() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holder
}

// Capabilities is what the target would say it can do.
func (t *Target) Capabilities() fence.Capabilities {
	c := fence.Capabilities{Transport: t.config.Transport, Reservations: fence.Yes, WriteExclusive: fence.Yes,
		PersistsThroughPower: fence.Yes, SharedAttachment: fence.Yes, ReadByKernel: fence.Yes}
	if t.config.Volatile {
		c.PersistsThroughPower = fence.No
	}
	return c
}

// Kill makes every later command of the attachment fail: its process has crashed.
func (a *Attachment) Kill() { a.dead = true }

// Register implements fence.Target.
func (a *Attachment) Register(old, key fence.Key, ignore bool) error {
	return a.command("register", func(t *Target) error {
		has, registered := t.keys[a.host]
		if err := t.mayRegister(registered, has, old, key, ignore); err != nil {
			return err
		}
		if !registered {
			t.order = append(t.order, a.host)
		}
		t.keys[a.host] = key
		t.generation++
		return nil
	})
}

// mayRegister is the part that targets and kernels disagree about.
func (t *Target) mayRegister(registered bool, has, old, key fence.Key, ignore bool) error {
	nvme := t.config.Transport == fence.NVMe
	switch {
	case old == 0 && registered && nvme && has == key:
		return nil
	case old == 0 && registered && !nvme && ignore:
		return nil
	case old == 0 && registered:
		return conflict("registered with key %s already", has)
	case old == 0 || ignore:
		return nil
	case !registered || has != old:
		return conflict("not registered with key %s", old)
	}
	return nil
}

// Unregister implements fence.Target.
func (a *Attachment) Unregister(own fence.Key) error {
	return a.command("unregister", func(t *Target) error {
		if err := t.registered(a.host, own); err != nil {
			return err
		}
		t.forget(a.host)
		if t.config.Transport == fence.NVMe {
			t.generation++
		}
		return nil
	})
}

// Reserve implements fence.Target.
func (a *Attachment) Reserve(own fence.Key) error {
	return a.command("reserve", func(t *Target) error {
		if err := t.knows(a.host); err != nil {
			return err
		}
		if err := t.registered(a.host, own); err != nil {
			return err
		}
		if t.kind != fence.NoReservation && (t.holder != a.host || t.kind != fence.WriteExclusive) {
			return conflict("%s holds %s", t.holder, t.kind)
		}
		t.take(a.host)
		return nil
	})
}

// Preempt implements fence.Target.
func (a *Attachment) Preempt(own, victim fence.Key, abort bool) error {
	return a.command("preempt", func(t *Target) error {
		if err := t.registered(a.host, own); err != nil {
			return err
		}
		var victims []string
		for _, host := range t.order {
			if t.keys[host] == victim && host != a.host {
				victims = append(victims, host)
			}
		}
		if len(victims) == 0 {
			return conflict("nobody is registered with key %s", victim)
		}
		held := t.kind != fence.NoReservation && slices.Contains(victims, t.holder)
		for _, host := range victims {
			t.forget(host)
		}
		if held {
			t.take(a.host)
		}
		t.generation++
		if abort && t.config.AbortHangs {
			return fmt.Errorf("%w: simulated", fence.ErrUnanswered)
		}
		for _, host := range victims {
			for _, view := range t.views[host] {
				if abort {
					t.config.Disk.Abort(view)
				}
			}
		}
		return nil
	})
}

// Clear implements fence.Target.
func (a *Attachment) Clear(own fence.Key) error {
	return a.command("clear", func(t *Target) error {
		if err := t.knows(a.host); err != nil {
			return err
		}
		if err := t.registered(a.host, own); err != nil {
			return err
		}
		clear(t.keys)
		t.order = nil
		t.generation++
		t.release()
		return nil
	})
}

// Read implements fence.Target.
func (a *Attachment) Read() (st fence.Status, err error) {
	err = a.command("read", func(t *Target) error {
		st = fence.Status{Generation: t.generation, Type: t.kind, Persists: fence.Yes}
		if t.config.Volatile {
			st.Persists = fence.No
		}
		for _, host := range t.order {
			st.Keys = append(st.Keys, t.keys[host])
		}
		if t.kind != fence.NoReservation {
			st.Holder = t.keys[t.holder]
		}
		return nil
	})
	return st, err
}

// Close implements fence.Target.
func (a *Attachment) Close() error { return nil }

// command runs one command with the hooks around it.
func (a *Attachment) command(name string, run func(*Target) error) error {
	if a.dead {
		return ErrDead
	}
	if a.Before != nil {
		if err := a.Before(name); err != nil {
			return err
		}
	}
	a.target.mu.Lock()
	err := run(a.target)
	a.target.mu.Unlock()
	if err == nil && a.After != nil {
		return a.After(name)
	}
	return err
}

func (t *Target) registered(host string, own fence.Key) error {
	if has, ok := t.keys[host]; !ok || has != own {
		return conflict("%s is not registered with key %s", host, own)
	}
	return nil
}

// knows is how LIO refuses an unregistered host while nobody holds the reservation.
func (t *Target) knows(host string) error {
	if _, ok := t.keys[host]; !ok && t.config.Transport == fence.SCSI && t.kind == fence.NoReservation {
		return fmt.Errorf("%w: %s is not registered", fence.ErrFailed, host)
	}
	return nil
}

// forget ends a registration, and a reservation that goes with it.
func (t *Target) forget(host string) {
	delete(t.keys, host)
	t.order = slices.DeleteFunc(t.order, func(x string) bool { return x == host })
	if t.holder == host {
		t.release()
	}
}

func (t *Target) take(host string) {
	t.holder, t.kind = host, fence.WriteExclusive
	t.fenceDisk()
}

func (t *Target) release() {
	t.holder, t.kind = "", fence.NoReservation
	t.fenceDisk()
}

// fenceDisk lets only the holder's newest process write.
func (t *Target) fenceDisk() {
	if t.config.Disk == nil {
		return
	}
	var view *simdev.View
	if views := t.views[t.holder]; len(views) > 0 {
		view = views[len(views)-1]
	}
	t.config.Disk.Reserve(view)
}

func conflict(format string, args ...any) error {
	return fmt.Errorf("%w: %s", fence.ErrConflict, fmt.Sprintf(format, args...))
}
