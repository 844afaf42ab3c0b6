// Package drive makes the same load of durable appends for every system, and measures
// it: rate, latency from the intended send time, processor time, device writes.
package drive

import (
	"context"
	"os/exec"
)

// Setup is what a system gets for one cell.
type Setup struct {
	Device     string // the blank block device; "": the store is a directory
	Dir        string // an empty directory of the store; of a device: on a fresh filesystem, "" for systems that want none
	Scratch    string // a directory for sockets, elsewhere
	StoreBytes int64  // of the device, or what may be used of the directory
	Programs   string // the directory of the walsidecar binary and of the load programs
	Cell
}

// Cell is the work: durable appends of records of one size.
type Cell struct {
	Size      int `json:"size"`      // payload bytes of a record
	Producers int `json:"producers"` // that append at once
	InFlight  int `json:"inflight"`  // of each producer; 1: a closed loop
}

// Pipelined is whether producers do not wait for each answer.
func (c Cell) Pipelined() bool { return c.InFlight > 1 }

// System is one system under measurement. It answers an append only once the record is
// on stable media. Beside these methods it has at least one of Appender, Pipeline,
// Batcher and Program; the driver takes the first that fits the cell.
type System interface {
	// Open starts it on an empty store.
	Open(ctx context.Context, s Setup) error
	// Close ends it. What it wrote may stay.
	Close() error
}

// Appender appends one record durably. Producers 0 to Setup.Producers-1 call it at once.
type Appender interface {
	Append(producer int, record []byte) error
}

// Pipeline appends without waiting. One goroutine calls it.
type Pipeline interface {
	// Submit puts a record in flight. It is not changed before Wait has returned for it.
	Submit(record []byte) error
	// Wait waits until the oldest record that Wait has not returned for is durable.
	Wait() error
}

// Batcher appends several records durably, with one call. Many producers, and a
// pipelined one, reach it through the driver's group committer.
type Batcher interface {
	AppendBatch(records [][]byte) error
}

// Program is a system whose load comes from a process of its own. It prints "ready" once it
// makes its load, counts between the lines "measure" and "stop" on its standard input, and
// then prints a Counted as one JSON line and ends.
type Program interface {
	LoadCommand() *exec.Cmd
}

// Counted is what a load program counted.
type Counted struct {
	Appends uint64  `json:"appends"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
	P999    float64 `json:"p999_us"`
	Max     float64 `json:"max_us"`
}
