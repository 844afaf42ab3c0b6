package node

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/upload/store/simstore"
)

// What a dry run says of a full log is what the start then does, and it writes nothing.
func TestADryRunForeseesHowRoomIsMade(t *testing.T) {
	jumps := func(r *roomRig) {
		r.cfg.Fencing.Forced = true // it does not look for signs of life
		r.cfg.seams.fence = func() *fence.Fence { return fence.Without(fence.ModeAttach, fence.Capabilities{}) }
	}
	for _, c := range []struct {
		name   string
		half   bool // a checkpoint half-way
		starts int  // that jumped and died
		change func(*roomRig)
		room   bool // has to be made
		trims  bool
	}{
		{"a full log and no jump", true, 0, nil, false, false},
		{"a jump, with a store", true, 1, jumps, true, true},
		{"earlier starts jumped, with a store", true, 3, nil, true, true},
		{"earlier starts jumped, no checkpoint that would let it trim", false, 3, nil, true, false},
		{"a jump, without a store", true, 1, func(r *roomRig) { jumps(r); r.cfg.Objects = nil }, true, false},
		{"earlier starts jumped, without a store", true, 3, func(r *roomRig) { r.cfg.Objects = nil }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newFullLog(t, c.half, c.starts)
			r.cfg.Fencing.LateWrites = 2 * time.Second // the wait of a jump counts for it
			if c.trims {
				r.cfg.Fencing.LateWrites = time.Minute // the store has time enough
			}
			if c.change != nil {
				c.change(r)
			}
			f := r.startsAsForeseen()
			if (f.Room != nil) != c.room || c.room && f.Room.Trims != c.trims {
				t.Errorf("foreseen: %+v", f.Room)
			}
		})
	}
	t.Run("a jump, and room for it", func(t *testing.T) {
		t.Parallel()
		r := newRoomRig(t)
		r.up()
		d := r.dial()
		r.stream = d.create("s").ID
		r.appendOne(d)
		r.die()
		r.deadStart()
		jumps(r)
		if f := r.startsAsForeseen(); f.Room != nil || !r.node.hold.outcome.Jump {
			t.Errorf("foreseen: %+v, it jumped: %t", f.Room, r.node.hold.outcome.Jump)
		}
	})
}

// startsAsForeseen has a dry run foresee the next start, and compares.
func (r *roomRig) startsAsForeseen() *Forecast {
	r.t.Helper()
	image, writes := bytes.Clone(r.mem.b), r.store.Requests(simstore.Put)+r.store.Requests(simstore.Replace)
	f, err := foreseeOn(context.Background(), r.cfg, r.mem)
	if err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Equal(image, r.mem.b) || writes != r.store.Requests(simstore.Put)+r.store.Requests(simstore.Replace) {
		r.t.Error("the dry run wrote something")
	}
	from := time.Now()
	r.up()
	r.cameAs(f, time.Since(from))
	r.readable()
	r.die()
	return f
}

// cameAs compares a start with what was foreseen of it.
func (r *roomRig) cameAs(f *Forecast, took time.Duration) {
	r.t.Helper()
	made := slices.ContainsFunc(r.node.Laps(), func(l Lap) bool { return l.Step == "room" })
	trimmed, inPlace := r.told.told("there is room for the start"), r.told.told("without a jump")
	if made != (f.Room != nil) || trimmed != (made && f.Room.Trims) || inPlace != (made && !f.Room.Trims) {
		r.t.Errorf("foreseen: %+v; it made room: %t, by a trim: %t, by beginning in place: %t", f.Room, made, trimmed, inPlace)
	}
	least := 0.0
	for _, s := range f.Steps {
		least += s.Seconds
	}
	if inPlace {
		least += f.Room.Seconds
	}
	if took.Seconds() < least {
		r.t.Errorf("it took %s, and was to wait %f s", took, least)
	}
}
