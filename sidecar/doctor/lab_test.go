package doctor_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/node"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/sidecar/doctor"
)

func finding(r *doctor.Report, check string) doctor.Finding {
	for _, f := range r.Findings {
		if f.Check == check {
			return f
		}
	}
	return doctor.Finding{}
}

// In the guest of tools/prlab alone (make prlab): what doctor and the fence commands say
// about devices with real reservations, through another attachment than the holder's.
func TestLabWhoHoldsADevice(t *testing.T) {
	if os.Getenv("PRLAB_NVME_A") == "" {
		t.Skip("only in the lab: make prlab")
	}
	for _, bus := range []string{"NVME", "SCSI"} {
		t.Run(bus, func(t *testing.T) {
			a, b := os.Getenv("PRLAB_"+bus+"_A"), os.Getenv("PRLAB_"+bus+"_B")
			blank(t, b)
			if _, err := node.Format(node.FormatOptions{Path: a, Node: "n1"}); err != nil {
				t.Fatal(err)
			}
			r := doctor.Examine(a, doctor.Options{})
			if f := finding(r, "fence"); (f.Level == doctor.Problem) != (bus == "NVME") {
				t.Errorf("volatile reservations not accepted: %+v", f)
			}
			r = doctor.Examine(a, doctor.Options{AcceptVolatile: true})
			if r.Problems != 0 {
				t.Errorf("%+v", r)
			}
			for _, f := range r.Findings {
				t.Logf("%-8s %-22s %s → %s", f.Level, f.Check, f.Found, f.Advice)
			}
			f, err := fence.Open(a, fence.OpenOptions{AcceptVolatile: true})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			hold(t, f, fence.KeyOf("n1", [16]byte{1}))
			if st := status(t, b); st.Mode != "pr" || !strings.Contains(st.HolderIs, "has written no superblock") || len(st.Registrants) != 1 {
				t.Errorf("held by a start of the log's node: %+v", st)
			}
			foreign := fence.KeyOf("n2", [16]byte{2})
			hold(t, f, foreign)
			if st := status(t, b); st.Holder != foreign || !strings.Contains(st.HolderIs, "not of node n1") {
				t.Errorf("held by another node: %+v", st)
			}
			if f := finding(doctor.Examine(b, doctor.Options{AcceptVolatile: true}), "holder"); f.Level != doctor.Problem || !strings.Contains(f.Advice, "fence clear "+b+" --expect-holder "+foreign.String()) {
				t.Errorf("held by another node: %+v", f)
			}
			if _, err := doctor.FenceClear(b, 0x1234); !errors.Is(err, fence.ErrConflict) || !strings.Contains(err.Error(), foreign.String()) {
				t.Errorf("cleared from the wrong holder: %v", err)
			}
			inUse(t, b, foreign)
			st, err := doctor.FenceClear(b, foreign)
			if err != nil || st.Type != fence.NoReservation || len(st.Registrants) != 0 {
				t.Errorf("cleared: %+v, %v", st, err)
			}
		})
	}
}

// blank clears what an earlier test left.
func blank(t *testing.T, path string) {
	t.Helper()
	if _, err := doctor.FenceClear(path, status(t, path).Holder); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func hold(t *testing.T, f *fence.Fence, key fence.Key) {
	t.Helper()
	if err := f.Register(key); err != nil {
		t.Fatal(err)
	}
	if err := f.Reserve(key); err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, path string) *doctor.Fence {
	t.Helper()
	st, err := doctor.FenceStatus(path)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// inUse checks that a device that is open here is not cleared.
func inUse(t *testing.T, path string, holder fence.Key) {
	t.Helper()
	dev, err := device.Open(path, device.OpenOptions{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if _, err := doctor.FenceClear(path, holder); !errors.Is(err, device.ErrInUse) {
		t.Errorf("cleared while it is in use here: %v", err)
	}
}
