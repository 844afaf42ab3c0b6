package node

import (
	"errors"
	"os"
	"testing"

	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/stream"
)

// salvageAll returns the payload lengths of what survives of s, and the report.
func salvageAll(t *testing.T, path string) (records int, found *Salvaged) {
	t.Helper()
	found, err := Salvage(path, SalvageVisitor{
		Record: func(_ *reader.Record, name string) error {
			if name != "s" {
				t.Errorf("a record of stream %q", name)
			}
			records++
			return nil
		},
		Gap:       func(ringwal.Gap) error { return nil },
		StreamGap: func(stream.ID, string, uint64, uint64) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, found
}

// With the newest pair of superblocks gone a start is refused, and salvage still gives
// every record, of epochs too that only the lost pair knew, and says what is wrong.
func TestP7_SalvageWithoutTheNewestSuperblocks(t *testing.T) {
	r := newRig(t)
	d := r.dial()
	s := d.create("s")
	for epoch := 1; epoch <= 3; epoch++ {
		for range 100 {
			d.append(s.ID, []byte("record"))
		}
		r.close()
		whole, err := os.ReadFile(r.path)
		if err != nil {
			t.Fatal(err)
		}
		report, err := Inspect(r.path)
		if err != nil {
			t.Fatal(err)
		}
		set := report.Newest / 2 * 2
		damaged := append([]byte(nil), whole...)
		damaged[set*ringwal.SlotBytes+100] ^= 1
		damaged[(set+1)*ringwal.SlotBytes+100] ^= 1
		if err := os.WriteFile(r.path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(r.path); !errors.Is(err, ringwal.ErrDamaged) {
			t.Fatalf("epoch %d: verify says %v", epoch, err)
		}
		if records, found := salvageAll(t, r.path); records != 100*epoch || found.Problem == "" {
			t.Fatalf("epoch %d: %d records survive of %d, problem %q", epoch, records, 100*epoch, found.Problem)
		}
		if err := os.WriteFile(r.path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if records, found := salvageAll(t, r.path); records != 100*epoch || found.Problem != "" {
			t.Fatalf("epoch %d, sound: %d records, problem %q", epoch, records, found.Problem)
		}
		r.open()
		d = r.dial()
	}
	r.close()
}
