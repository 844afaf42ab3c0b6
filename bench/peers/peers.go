// Package peers holds one adapter for each system under measurement.
package peers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// Kind says what a system is to be compared with.
type Kind string

// The kinds.
const (
	Sidecar   Kind = "walsidecar"
	Library   Kind = "library"   // inside the process of the load
	Server    Kind = "server"    // a process of its own
	Reference Kind = "reference" // no system: what the device and the language allow
)

// Peer is one system that can be measured.
type Peer struct {
	Name string // "+gc": it has only batches, and runs behind the driver's group committer
	Kind Kind
	Raw  bool // it wants a blank device, not a filesystem
	Make func() drive.System
	// Missing says why it cannot be measured here; "": it can.
	Missing func(programs string) string
	// Skip is whether a cell says nothing about it.
	Skip func(c drive.Cell) bool
}

// All is every peer, in the order in which they are measured in turns and shown.
var All = []Peer{
	sidecar("walsidecar-shm", "shm", false, "adaptive"),
	sidecar("walsidecar-shm-c", "shm", true, "adaptive"),
	sidecar("walsidecar-uds", "uds", false, "adaptive"),
	sidecar("walsidecar-uds-c", "uds", true, "adaptive"),
	onlyAlone(sidecar("walsidecar-shm-spin", "shm", false, "spin")),
	onlyAlone(sidecar("walsidecar-shm-c-spin", "shm", true, "spin")),
	doorAlone("door-shm", "shm", "adaptive"),
	doorAlone("door-shm-spin", "shm", "spin"),
	doorAlone("door-uds", "uds", "adaptive"),
	{Name: "rawgo", Kind: Reference, Raw: true, Make: func() drive.System { return &rawGo{} }},
	{Name: "etcd-wal+gc", Kind: Library, Make: func() drive.System { return &etcdWAL{} }},
	{Name: "raft-wal+gc", Kind: Library, Make: func() drive.System { return &raftWAL{} }},
	{Name: "tidwall+gc", Kind: Library, Make: func() drive.System { return &tidwall{} }},
	{Name: "pebble", Kind: Library, Make: func() drive.System { return &pebbleDB{} }},
	{Name: "rocksdb", Kind: Library, Make: func() drive.System { return &rocksDB{} }, Missing: needsProgram(rocksProgram, "apt-get install g++ librocksdb-dev"), Skip: drive.Cell.Pipelined},
	{Name: "nats", Kind: Server, Make: func() drive.System { return &natsServer{} }},
	{Name: "redis", Kind: Server, Make: func() drive.System { return &redisServer{} }, Missing: missingRedis},
	{Name: "postgresql", Kind: Server, Make: func() drive.System { return &postgres{} }, Missing: missingPostgres},
}

// Named returns the peer with a name.
func Named(name string) (Peer, error) {
	for _, p := range All {
		if p.Name == name {
			return p, nil
		}
	}
	return Peer{}, fmt.Errorf("no system is named %q: `bench list` lists them", name)
}

// Reason says why a peer cannot be measured here, or "".
func (p Peer) Reason(programs string) string {
	if p.Missing == nil {
		return ""
	}
	return p.Missing(programs)
}

// Measures is whether the cell says something about the peer.
func (p Peer) Measures(c drive.Cell) bool { return p.Skip == nil || !p.Skip(c) }

// sidecar is walsidecar by one door, with one client.
func sidecar(name, door string, c bool, wait string) Peer {
	p := Peer{Name: name, Kind: Sidecar, Raw: true, Missing: needsProgram(sidecarProgram, "make build")}
	if c {
		p.Make = func() drive.System { return &cSidecar{sidecarProcess: sidecarProcess{wait: wait}, door: door} }
		p.Missing = needsProgram(cLoadProgram, "apt-get install gcc")
	} else {
		p.Make = func() drive.System { return &goSidecar{sidecarProcess: sidecarProcess{wait: wait}, door: door} }
	}
	return p
}

// doorAlone is walsidecar's way in with nothing behind it: nothing is kept.
func doorAlone(name, door, wait string) Peer {
	return onlyAlone(Peer{Name: name, Kind: Reference, Raw: true, Missing: needsProgram(sidecarProgram, "make build"), Make: func() drive.System {
		return &goSidecar{sidecarProcess: sidecarProcess{wait: wait, null: true}, door: door}
	}})
}

// onlyAlone keeps a peer to one closed-loop producer.
func onlyAlone(p Peer) Peer {
	p.Skip = func(c drive.Cell) bool { return c.Producers*c.InFlight > 1 }
	return p
}

// needsProgram is missing where bench/build has not built a program.
func needsProgram(name, hint string) func(string) string {
	return func(programs string) string {
		if _, err := os.Stat(filepath.Join(programs, name)); err != nil {
			return fmt.Sprintf("%s was not built (%s, then bench/build)", name, hint)
		}
		return ""
	}
}

func missingRedis(string) string {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return "redis-server is not installed (apt-get install redis-server)"
	}
	return ""
}

// keepBytes is what systems without a bound of their own keep of their log: once there is
// twice as much, its older half is trimmed, as a user would who has taken it elsewhere.
const keepBytes = 128 << 20

// trimmer says when to trim, and to where.
type trimmer struct {
	size  int
	first uint64 // the oldest record that is kept
}

// before is the record before which to trim, when records up to last were appended.
func (t *trimmer) before(last uint64) (uint64, bool) {
	if (last-t.first)*uint64(t.size) < 2*keepBytes {
		return 0, false
	}
	t.first = last - keepBytes/uint64(t.size)
	return t.first, true
}
