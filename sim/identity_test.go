package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device/simdev"
)

// aLog is a world whose disk holds a log that was used and crashed.
func aLog(t *testing.T, seed uint64) *World {
	w := newWorld(Options{Seed: seed, Kind: Honest, adjust: func(p *profile) { p.steps, p.crash, p.startCrash = 150, 0, 0 }}, false)
	t.Cleanup(w.close)
	w.format()
	for w.step = 1; w.step <= w.profile.steps; w.step++ {
		if w.host == nil {
			w.start()
			continue
		}
		w.hostStep()
	}
	if w.host != nil {
		w.host.settle()
		w.kill()
	}
	w.quiet = true
	return w
}

// contents is every byte of a disk.
func contents(d *simdev.Disk, size int64) []byte {
	b := make([]byte, size)
	d.Peek(b, 0)
	return b
}

// resign puts a new checksum behind a superblock that was changed.
func resign(slot []byte) {
	length := binary.LittleEndian.Uint32(slot[12:])
	binary.LittleEndian.PutUint64(slot[length:], xxhash.Sum64(slot[:length]))
}

// TestP8_ADeviceThatIsNotOursIsNeverWritten: a start on it is refused by name, before
// the first write of any kind.
func TestP8_ADeviceThatIsNotOursIsNeverWritten(t *testing.T) {
	eachSlot := func(b []byte, change func(slot []byte)) {
		for i := range ringwal.SlotCount {
			change(b[i*ringwal.SlotBytes:])
		}
	}
	cases := []struct {
		name   string
		change func(w *World, b []byte) []byte
		want   error
	}{
		{"blank", func(_ *World, b []byte) []byte { clear(b); return b }, ringwal.ErrNotALog},
		{"garbage", func(w *World, b []byte) []byte {
			copy(b, newNoise(w.rng, min(len(b), 1<<20)).bytes())
			return b
		}, ringwal.ErrNotALog},
		{"a filesystem over the superblocks", func(_ *World, b []byte) []byte {
			clear(b[:ringwal.RingStart])
			b[1024+56], b[1024+57] = 0x53, 0xEF
			return b
		}, ringwal.ErrNotALog},
		{"another node's log", func(_ *World, b []byte) []byte {
			eachSlot(b, func(s []byte) { copy(s[64:], "\x05other"); resign(s) })
			return b
		}, errOtherNode},
		{"one slot of another log", func(w *World, b []byte) []byte {
			slot := b[w.rng.IntN(ringwal.SlotCount)*ringwal.SlotBytes:]
			slot[48]++
			resign(slot)
			return b
		}, ringwal.ErrDamaged},
		{"every superblock rotten", func(w *World, b []byte) []byte {
			eachSlot(b, func(s []byte) { s[64+w.rng.IntN(200)] ^= 4 })
			return b
		}, ringwal.ErrDamaged},
		{"another format", func(_ *World, b []byte) []byte {
			eachSlot(b, func(s []byte) { s[8]++; resign(s) })
			return b
		}, ringwal.ErrFormat},
		{"a feature of a later version", func(_ *World, b []byte) []byte {
			eachSlot(b, func(s []byte) { s[32] |= 0x80; resign(s) })
			return b
		}, ringwal.ErrFormat},
		{"a cut device", func(w *World, b []byte) []byte {
			block := int(w.profile.geometry.BlockBytes)
			return b[:len(b)-block*(1+w.rng.IntN(4))]
		}, ringwal.ErrGeometry},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for seed := uint64(1); seed <= 10; seed++ {
				w := aLog(t, seed)
				b := contents(w.disk, ringwal.RingStart+int64(w.profile.geometry.CapacityBytes))
				b = c.change(w, b)
				disk := simdev.New(simdev.Config{SizeBytes: int64(len(b)), BlockBytes: int(w.profile.geometry.BlockBytes)})
				disk.Poke(b, 0)
				err := refusedStart(t, w, disk)
				if !errors.Is(err, c.want) {
					t.Errorf("seed %d: got %v, want %v", seed, err, c.want)
				}
				if !bytes.Equal(contents(disk, int64(len(b))), b) {
					t.Errorf("seed %d: the device was changed", seed)
				}
			}
		})
	}
	t.Run("a device of another block size", func(t *testing.T) {
		w := aLog(t, 1)
		g := w.profile.geometry
		b := contents(w.disk, ringwal.RingStart+int64(g.CapacityBytes))
		block := int64(g.BlockBytes) * 2
		disk := simdev.New(simdev.Config{SizeBytes: (int64(len(b)) + block - 1) / block * block, BlockBytes: int(block)})
		disk.Poke(b, 0)
		if err := refusedStart(t, w, disk); !errors.Is(err, ringwal.ErrGeometry) {
			t.Errorf("got %v, want %v", err, ringwal.ErrGeometry)
		}
	})
}

// refusedStart starts a host on a disk that is not the world's.
func refusedStart(t *testing.T, w *World, disk *simdev.Disk) error {
	t.Helper()
	h := &host{w: w, name: "host", view: disk.Open("host")}
	h.port = &port{w: w, view: h.view, quiet: true}
	_, err := h.recover()
	if err == nil {
		t.Error("the device was taken for the log")
	}
	if h.port.writes > 0 {
		t.Errorf("%d writes to a device that is not ours", h.port.writes)
	}
	return err
}
