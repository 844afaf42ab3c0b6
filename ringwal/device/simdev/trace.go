package simdev

import (
	"fmt"
	"slices"
	"strings"
)

// TraceEvents is how many events a disk remembers; older ones are forgotten.
const TraceEvents = 4096

// event is one line of the trace. Reads are in it only where they fail: recovery
// makes thousands.
type event struct {
	number uint64 // of the event, from 1
	host   string // "" for the disk itself
	what   string
	write  uint64 // 0: none
	offset int64
	length int
	note   string
}

type trace struct {
	events []event // a ring once it is full
	count  uint64
}

func (d *Disk) note(v *View, what string, write uint64, offset int64, length int, note string) {
	e := event{what: what, write: write, offset: offset, length: length, note: note}
	if v != nil {
		e.host = v.host
	}
	d.trace.add(e)
}

func (t *trace) add(e event) {
	t.count++
	e.number = t.count
	if len(t.events) < TraceEvents {
		t.events = append(t.events, e)
		return
	}
	t.events[(t.count-1)%TraceEvents] = e
}

func (t *trace) clone() trace {
	return trace{events: slices.Clone(t.events), count: t.count}
}

// Trace tells what happened to the disk, one event per line, oldest first, after
// a line with the seed.
func (d *Disk) Trace() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "simdev: seed %d, %d bytes, block %d, %d events\n",
		d.config.Seed, d.config.SizeBytes, d.config.BlockBytes, d.trace.count)
	t := &d.trace
	first := uint64(0)
	if t.count > TraceEvents {
		first = t.count % TraceEvents
		fmt.Fprintf(&b, "… %d earlier events are forgotten\n", t.count-TraceEvents)
	}
	for i := range uint64(len(t.events)) {
		t.events[(first+i)%uint64(len(t.events))].print(&b)
	}
	return b.String()
}

func (e *event) print(b *strings.Builder) {
	host := e.host
	if host == "" {
		host = "disk"
	}
	fmt.Fprintf(b, "%5d %s: %s", e.number, host, e.what)
	if e.write != 0 {
		fmt.Fprintf(b, " write %d", e.write)
	}
	if e.length != 0 {
		fmt.Fprintf(b, " [%d, %d)", e.offset, e.offset+int64(e.length))
	}
	if e.note != "" {
		fmt.Fprintf(b, " %s", e.note)
	}
	b.WriteByte('\n')
}
