// Package node is one log brought to life: its device, the start routine, the
// commit loop, and the reader.
//
// One goroutine, the commit loop, owns the stream table and the open frame. Around
// it: a fixed set of writers that put frames on the device, one goroutine for
// superblocks and trims, and whoever calls; all of them reach the loop through its
// inbox alone.
package node

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/readcache"
	"github.com/walsidecar/walsidecar/reader"
	"github.com/walsidecar/walsidecar/ringwal"
	"github.com/walsidecar/walsidecar/ringwal/device"
	"github.com/walsidecar/walsidecar/stream"
	"github.com/walsidecar/walsidecar/upload"
	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/wire"
)

// Errors of a node. They carry their code of the one error table.
var (
	// ErrNotOurs says that the path holds something that this sidecar must not write.
	ErrNotOurs error = &wire.Error{Code: wire.CodeNotOurDevice, Message: "not our device"}
	// ErrNoLog says that there is no log and that none may be made without being asked.
	ErrNoLog error = &wire.Error{Code: wire.CodeNotOurDevice, Message: "no log there"}
	// ErrOtherStore says that the store lacks what the log has let go.
	ErrOtherStore error = &wire.Error{Code: wire.CodeStoreUnavailable, Message: "not the store of this log"}
	// ErrDraining refuses what comes while the log shuts down.
	ErrDraining error = &wire.Error{Code: wire.CodeDraining, Message: "the sidecar is shutting down"}
)

// Sizes and times of a node.
const (
	// WritersInFlight is how many frames are written at once. Cloud volumes reach
	// their bandwidth with a few; more only lengthen the queue.
	WritersInFlight = 8

	// QuantumBytes is how much every frame in flight makes the next one wait for.
	QuantumBytes = 32 << 10

	// SealAfter is how long a log is idle before the seal that proves its last
	// group durable.
	SealAfter = 200 * time.Millisecond

	// TickAfter is the longest that the loop sleeps while a write is on its way, so
	// that a stall is seen.
	TickAfter = 100 * time.Millisecond

	// busyFor is how long an open waits for a process that was just killed.
	busyFor = 3 * time.Second

	// tailShare is the part of the memory budget that the hot tail takes.
	tailShare = 4
)

// Config says which log to bring to life, and how.
type Config struct {
	Path      string
	SizeBytes int64       // of a new file; 0: DefaultFileBytes
	Node      string      // must match the log's, unless ""
	Store     string      // URL of the object store, shown in Status; StoreNone: the application trims
	Objects   store.Store // where records go; nil: nowhere. With a Store that is not StoreNone nothing then leaves the log
	// StorePatience is how long a start waits for a store that does not answer; 0: a minute.
	StorePatience time.Duration
	// StoreStartsHere serves a log with a store that lacks what the log has let go.
	StoreStartsHere bool
	// Proved, unless nil, waits for the proof that the store honours conditional writes; it
	// is called before the first of them.
	Proved      func() error
	Linger      time.Duration // how long records wait for company on their way to the store; 0: the default
	Retention   upload.Retention
	StallAfter  time.Duration // L; 0: as in the superblock
	Fencing     Fencing
	Waiting     func(*Wait)    // unless nil, hears what a start waits for, and nil when that is over
	MemoryBytes int64          // budget of the process; the hot tail takes a quarter
	IOPS        int64          // write operations a second that the volume was bought with; 0: no budget
	Bandwidth   int64          // bytes a second that it was bought with; 0: no budget
	Profile     device.Profile // makes the device as slow as a cloud volume
	SlowAfter   time.Duration  // appends that take longer are logged with their stages; 0: never
	Server      string         // name and version, for Welcome
	Log         *slog.Logger

	seams seams
}

// seams are what a test puts in the place of the machine; zero: the machine.
type seams struct {
	fence func() *fence.Fence // of the device
}

// StoreNone is the Config.Store of a log that stays on its device.
const StoreNone = "none"

// DefaultFileBytes is the size of a log in a file that is made by the first start.
const DefaultFileBytes = 1 << 30

// Node is a running log. It implements session.Backend.
type Node struct {
	cfg  Config
	info device.Info
	dev  device.Device
	log  *slog.Logger

	tail      *readcache.Tail
	reader    *reader.Reader
	wal       *ringwal.Log      // of the loop
	committer *stream.Committer // of the loop
	pacer     ringwal.Pacer     // of the loop
	writers   *device.Writers
	super     chan superblockJob // to the goroutine that writes superblocks and reads for trims
	uploads   *uploads           // nil: without a store
	hold      fenced

	inbox   inbox
	sleeper *sleeper
	loop    loopState
	stats   stats
	start   start // what the start routine found
	welcome wire.Welcome
	boot    [16]byte

	failed   chan error    // the fatal cause, once
	stopped  chan struct{} // closed when the commit loop has ended
	superEnd chan struct{} // closed when the superblock goroutine has ended
	ending   atomic.Bool   // AnnounceDrain
	draining atomic.Bool
	refusing atomic.Pointer[wire.Error] // why the log takes nothing more
	snapshot atomic.Pointer[Status]
	ended    sync.Mutex // of what was the loop's, once that has ended
}

// start is what the start routine found and did.
type start struct {
	recovery        ringwal.Recovery
	epoch           uint64
	waited          time.Duration // for writes of an earlier owner
	heldNS          int64         // CLOCK_BOOTTIME since when the device is known to be ours alone
	waitsFor        string        // told last
	recoverySeconds float64
	recoveredBytes  uint64 // of the log
	laps            []Lap
	lapFrom         time.Time
	wasClean        bool
	grownBytes      int64
}

// Failed delivers the cause once the log has stopped for good.
func (n *Node) Failed() <-chan error { return n.failed }

// Reader is the log's read path.
func (n *Node) Reader() *reader.Reader { return n.reader }
