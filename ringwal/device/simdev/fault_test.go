package simdev

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/walsidecar/walsidecar/ringwal/device"
)

func TestLostWrite(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	mustWrite(t, v, filled(4096, 1), 0)
	id := d.Inject(Fault{Kind: LostWrite, Times: 1})
	mustWrite(t, v, filled(4096, 2), 0) // answered well
	if got := mustRead(t, v, 0, 4096); !bytes.Equal(got, filled(4096, 1)) {
		t.Error("a lost write changed something")
	}
	if d.Hits(id) != 1 {
		t.Errorf("%d hits", d.Hits(id))
	}
	mustWrite(t, v, filled(4096, 3), 0)
	if got := mustRead(t, v, 0, 4096); !bytes.Equal(got, filled(4096, 3)) {
		t.Error("the fault hit twice")
	}
}

func TestMisdirectedWrite(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	d.Inject(Fault{Kind: MisdirectedWrite, Times: 1, By: 12288})
	mustWrite(t, v, filled(8192, 1), 4096)
	if full, _, _ := sectorsOf(mustRead(t, v, 4096, 8192), 1); full != 0 {
		t.Error("it is in its own place")
	}
	if full, _, _ := sectorsOf(mustRead(t, v, 16384, 8192), 1); full != 16 {
		t.Error("it is not 12288 bytes behind")
	}
}

func TestMisdirectedWriteAnywhereElse(t *testing.T) {
	seed := newSeed(t)
	places := map[int64]bool{}
	for i := range uint64(50) {
		d := newDisk(t, Config{Seed: seed + i, SizeBytes: 8 * 4096})
		v := d.Open("a")
		d.Inject(Fault{Kind: MisdirectedWrite})
		mustWrite(t, v, filled(8192, 1), 3*4096)
		found := int64(-1)
		for at := int64(0); at <= 6*4096; at += 4096 {
			if bytes.Equal(onMedium(d, at, 8192), filled(8192, 1)) {
				found = at
			}
		}
		if found < 0 || found == 3*4096 {
			t.Fatalf("found at %d", found)
		}
		places[found] = true
	}
	if len(places) != 6 {
		t.Errorf("landed in %d places, want all 6 others", len(places))
	}
}

func TestShortWrite(t *testing.T) {
	seed := newSeed(t)
	lengths := map[int]bool{}
	for i := range uint64(50) {
		d := newDisk(t, Config{Seed: seed + i})
		v := d.Open("a")
		d.Inject(Fault{Kind: ShortWrite, Times: 1})
		err := v.WriteSync(filled(16384, 1), 4096)
		var failed *device.Error
		if !errors.Is(err, device.ErrShort) || !errors.Is(err, device.ErrWrite) || !errors.As(err, &failed) {
			t.Fatalf("error %v", err)
		}
		full, zero, _ := sectorsOf(onMedium(d, 4096, 16384), 1)
		if failed.Done%4096 != 0 || failed.Done >= 16384 || full*SectorBytes != failed.Done || full+zero != 32 {
			t.Fatalf("%d bytes told, %d sectors on the medium", failed.Done, full)
		}
		lengths[failed.Done] = true
	}
	if len(lengths) != 4 {
		t.Errorf("%d lengths, want 0 to 3 blocks", len(lengths))
	}
}

func TestErrorsOfTheDevice(t *testing.T) {
	write := func(v *View) error { return v.WriteSync(filled(4096, 1), 8192) }
	read := func(v *View) error { _, err := v.ReadAt(make([]byte, 4096), 8192); return err }
	flush := func(v *View) error { return v.Flush() }
	tests := []struct {
		kind Kind
		do   func(*View) error
		is   []error
	}{
		{WriteError, write, []error{device.ErrWrite, device.ErrIO, syscall.EIO}},
		{ReadError, read, []error{device.ErrRead, device.ErrIO, syscall.EIO}},
		{FlushError, flush, []error{device.ErrFlush, device.ErrIO, syscall.EIO}},
		{NoSpace, write, []error{device.ErrWrite, device.ErrNoSpace, syscall.ENOSPC}},
		{Conflict, write, []error{device.ErrWrite, device.ErrReservationConflict, syscall.EBADE}},
	}
	for _, tt := range tests {
		t.Run(tt.kind.String(), func(t *testing.T) {
			d := newDisk(t, Config{})
			v := d.Open("a")
			d.Inject(Fault{Kind: tt.kind, Times: 1})
			err := tt.do(v)
			for _, want := range tt.is {
				if !errors.Is(err, want) {
					t.Errorf("error %v does not match %v", err, want)
				}
			}
			if !strings.Contains(err.Error(), "sim:a") {
				t.Errorf("error %q does not name the device", err)
			}
			if err := tt.do(v); err != nil {
				t.Errorf("after one time: %v", err)
			}
			if !strings.Contains(d.Trace(), tt.kind.String()) {
				t.Errorf("the trace does not tell of it:\n%s", d.Trace())
			}
		})
	}
}

func TestConflictWritesNothing(t *testing.T) {
	seed := newSeed(t)
	for i := range uint64(50) {
		d := newDisk(t, Config{Seed: seed + i})
		v := d.Open("a")
		d.Inject(Fault{Kind: Conflict})
		if err := v.WriteSync(filled(16384, 1), 0); !errors.Is(err, device.ErrReservationConflict) {
			t.Fatal(err)
		}
		if _, zero, _ := sectorsOf(mustRead(t, v, 0, 16384), 1); zero != 32 {
			t.Fatal("a refused write left something")
		}
	}
}

func TestNoSpaceWritesAtMostABeginning(t *testing.T) {
	seed := newSeed(t)
	for i := range uint64(50) {
		d := newDisk(t, Config{Seed: seed + i})
		v := d.Open("a")
		d.Inject(Fault{Kind: NoSpace})
		if err := v.WriteSync(filled(16384, 1), 0); !errors.Is(err, device.ErrNoSpace) {
			t.Fatal(err)
		}
		p := onMedium(d, 0, 16384)
		end := bytes.IndexByte(p, 0)
		if end < 0 {
			t.Fatal("all of it was written")
		}
		if last := bytes.LastIndexByte(p, 1); last/SectorBytes > end/SectorBytes {
			t.Fatalf("written at %d behind a gap at %d", last, end)
		}
	}
}

func TestStickyRegion(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	id := d.Inject(Fault{Kind: ReadError, From: 8192 + 512, To: 8192 + 1024}) // one bad sector
	p := make([]byte, 8192)
	for range 3 {
		if _, err := v.ReadAt(p, 4096); !errors.Is(err, device.ErrIO) {
			t.Fatalf("a read over the bad sector: %v", err)
		}
		if _, err := v.ReadAt(p[:4096], 4096); err != nil {
			t.Fatalf("a read before it: %v", err)
		}
		if _, err := v.ReadAt(p[:4096], 12288); err != nil {
			t.Fatalf("a read behind it: %v", err)
		}
	}
	d.Heal(id)
	if _, err := v.ReadAt(p, 4096); err != nil {
		t.Fatalf("healed: %v", err)
	}
	if d.Hits(id) != 3 {
		t.Errorf("%d hits, want 3", d.Hits(id))
	}
}

func TestSkipTimesAndChance(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	d.Inject(Fault{Kind: WriteError, Skip: 2, Times: 2})
	var pattern []bool
	for range 6 {
		pattern = append(pattern, v.WriteSync(filled(4096, 1), 0) != nil)
	}
	want := []bool{false, false, true, true, false, false}
	for i := range want {
		if pattern[i] != want[i] {
			t.Fatalf("failed %v, want %v", pattern, want)
		}
	}
	id := d.Inject(Fault{Kind: WriteError, Chance: 0.25})
	for range 400 {
		_ = v.WriteSync(filled(4096, 1), 0)
	}
	if hits := d.Hits(id); hits < 60 || hits > 140 {
		t.Errorf("%d hits of 400 with a chance of 1/4", hits)
	}
	d.HealAll()
	mustWrite(t, v, filled(4096, 1), 0)
	if d.Hits(99) != 0 {
		t.Error("a fault that is none has hits")
	}
}

func TestStall(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	d.Inject(Fault{Kind: Stall, Times: 2})
	w := mustBegin(t, v, filled(4096, 1), 0)
	if !w.Stalled() {
		t.Fatal("not stalled")
	}
	if err := v.Finish(w); err != nil { // answered at last
		t.Fatal(err)
	}
	stalled := 0
	d.OnStall(func(host string, offset int64, length int) {
		stalled++
		if host != "a" || offset != 8192 || length != 4096 {
			t.Errorf("stall of %s at %d, %d bytes", host, offset, length)
		}
		d.Crash() // no lock is held: a supervisor may do anything
	})
	if err := v.WriteSync(filled(4096, 1), 8192); !errors.Is(err, ErrDead) || stalled != 1 {
		t.Errorf("%d stalls, %v", stalled, err)
	}
}

func TestRot(t *testing.T) {
	d := newDisk(t, Config{})
	v := d.Open("a")
	mustWrite(t, v, filled(4096, 0x0f), 4096)
	d.Rot(4096+100, 0x81)
	got := mustRead(t, v, 4096, 4096)
	if got[100] != 0x8e {
		t.Errorf("byte %#x, want 0x8e", got[100])
	}
	got[100] = 0x0f
	if !bytes.Equal(got, filled(4096, 0x0f)) {
		t.Error("other bytes changed")
	}
	d.Rot(4096+100, 0x81) // back again
	at := d.RotIn(4096, 8192)
	if at < 4096 || at >= 8192 {
		t.Fatalf("rot at %d", at)
	}
	differ := 0
	for i, b := range mustRead(t, v, 4096, 4096) {
		for x := b ^ 0x0f; x != 0; x &= x - 1 {
			if differ++; int64(i) != at-4096 {
				t.Errorf("rot at %d, told %d", i+4096, at)
			}
		}
	}
	if differ != 1 {
		t.Errorf("%d bits rotted, want 1", differ)
	}
}

func TestReservation(t *testing.T) {
	d := newDisk(t, Config{})
	a, b := d.Open("a"), d.Open("b")
	d.Reserve(a)
	mustWrite(t, a, filled(4096, 1), 0)
	if err := b.WriteSync(filled(4096, 2), 0); !errors.Is(err, device.ErrReservationConflict) {
		t.Fatalf("a write without the reservation: %v", err)
	}
	if got := mustRead(t, b, 0, 4096); !bytes.Equal(got, filled(4096, 1)) {
		t.Fatal("Write Exclusive lets everybody read")
	}
	late := mustBegin(t, a, filled(4096, 3), 4096)
	d.Reserve(b) // a plain preempt: what is on its way may still land
	if err := a.WriteSync(filled(4096, 4), 0); !errors.Is(err, device.ErrReservationConflict) {
		t.Fatalf("a write after the preempt: %v", err)
	}
	if err := a.Finish(late); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, b, 4096, 4096); !bytes.Equal(got, filled(4096, 3)) {
		t.Fatal("the late write did not land")
	}
	d.Reserve(nil)
	mustWrite(t, a, filled(4096, 5), 0)
}

func TestPreemptAndAbortEndsWhatIsInFlight(t *testing.T) {
	seed := newSeed(t)
	landed := 0
	for i := range uint64(50) {
		d := newDisk(t, Config{Seed: seed + i})
		a, b := d.Open("a"), d.Open("b")
		d.Reserve(a)
		w := mustBegin(t, a, filled(8192, 1), 0)
		d.PreemptAndAbort(b)
		before := mustRead(t, b, 0, 8192)
		if err := a.Finish(w); !errors.Is(err, device.ErrReservationConflict) {
			t.Fatalf("an aborted write: %v", err)
		}
		if !bytes.Equal(before, mustRead(t, b, 0, 8192)) {
			t.Fatal("an aborted write landed afterwards")
		}
		if full, _, _ := sectorsOf(before, 1); full > 0 {
			landed++
		}
	}
	if landed == 0 || landed == 50 {
		t.Errorf("of 50 aborted writes %d had landed in part", landed)
	}
}
