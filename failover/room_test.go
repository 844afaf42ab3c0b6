package failover_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/failover"
	peernode "github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
)

// deadTakeover is one on another host that jumps, and dies behind its first superblock.
func (p *peer) deadTakeover() {
	p.t.Helper()
	dev, err := device.Open(p.wal, device.OpenOptions{Exclusive: true, BusyFor: patience})
	if err != nil {
		p.t.Fatal(err)
	}
	defer dev.Close()
	sbs, err := ringwal.ReadSuperblocks(dev)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := ringwal.Recover(dev, sbs, ringwal.Visitor{})
	if err != nil {
		p.t.Fatal(err)
	}
	e := ringwal.Epoch{Number: sbs.MaxEpoch + 1, Jump: true, MakesRoom: true}
	binary.LittleEndian.PutUint64(e.Incarnation[:], e.Number)
	log, err := ringwal.Start(sbs, r, e, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		offset, b, ok := log.NextSuperblock(1)
		if !ok {
			return
		}
		log.SuperblockDone(dev.WriteSync(b, offset), 1)
	}
}

// A takeover of a log that takeovers before it have filled with what they jumped over makes
// room, by a trim or, where no checkpoint lets it, by its wait, and drains it.
func TestP12_ATakeoverOfAFullLogMakesRoom(t *testing.T) {
	t.Parallel()
	for name, trims := range map[string]bool{"by a trim": true, "by the wait": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t)
			p.append("orders", 100)
			p.appendLarge("audit", 40)
			p.kill()
			if trims { // the next start writes a checkpoint behind all that
				p.serve()
				p.append("orders", 1)
				p.kill()
			}
			for range 7 {
				p.deadTakeover()
			}
			o := p.options()
			if !trims {
				o.Fencing.LateWrites = time.Second
			}
			f, err := failover.Foresee(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if f.Room == nil || f.Room.Trims != trims {
				t.Errorf("foreseen: %+v", f.Room)
			}
			r, err := failover.Takeover(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(r.Steps, func(s peernode.Lap) bool { return s.Step == "room" }) {
				t.Errorf("steps %+v", r.Steps)
			}
			if want := uint64(len(p.acked["orders"]) + len(p.acked["audit"])); r.UploadedRecords != want {
				t.Errorf("%d records uploaded, %d were acked", r.UploadedRecords, want)
			}
			p.checkStored()
		})
	}
}

// appendLarge is append of records of 256 KiB.
func (p *peer) appendLarge(stream string, count int) {
	p.t.Helper()
	p.padding = strings.Repeat("x", 256<<10)
	p.append(stream, count)
	p.padding = ""
}
