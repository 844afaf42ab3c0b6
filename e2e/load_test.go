package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	walsidecar "github.com/walsidecar/walsidecar/clients/go"
)

// load is writers at work on one sidecar that will not come back.
type load struct {
	t       *testing.T
	client  *walsidecar.Client
	writers []*writer
	stop    atomic.Bool
	wg      sync.WaitGroup
}

// writerInFlight is how many records of one writer may be in doubt; see writer.run.
const writerInFlight = 16

// startLoad lets writers append to the host's sidecar, each to a stream of its own.
func startLoad(t *testing.T, h *host, name string, salt uint64, writers int) *load {
	t.Helper()
	return startLoadOn(t, h, "", name, salt, writers)
}

// startLoadOn is startLoad on a log that is named, and so is found where another sidecar has
// adopted it.
func startLoadOn(t *testing.T, h *host, log, name string, salt uint64, writers int) *load {
	t.Helper()
	c, err := walsidecar.Dial(t.Context(), h.path("s"), walsidecar.WithLog(log), walsidecar.WithGiveUpAfter(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, client: c}
	for i := range writers {
		w := &writer{stream: fmt.Sprintf("%s-%d", name, i), salt: salt}
		l.writers = append(l.writers, w)
		l.wg.Go(func() { w.run(c, &l.stop) })
	}
	t.Cleanup(l.end)
	return l
}

// awaitSome returns once a few records were acked.
func (l *load) awaitSome() {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		if _, err := l.client.Append(l.t.Context(), "some", []byte("x")); err != nil {
			l.t.Fatal(err)
		}
		if l.client.Durable() > 0 && time.Until(deadline) < patience-200*time.Millisecond {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// end stops the writers; what was not answered stays in doubt.
func (l *load) end() {
	l.stop.Store(true)
	_ = l.client.Close() // its log is gone
	l.wg.Wait()
}

// goesOn returns once more was acked than before, and ends the writers: nothing is in doubt.
func (l *load) goesOn(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := l.client.Append(ctx, "some", []byte("x")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // some more, however many
	l.stop.Store(true)
	l.wg.Wait()
	for _, w := range l.writers {
		if w.err != nil {
			t.Fatal(w.err)
		}
	}
}

// checkExactly compares each stream with what was acked, where nothing is in doubt.
func (l *load) checkExactly(t *testing.T, read func(stream string) string) {
	t.Helper()
	for _, w := range l.writers {
		if got := lines(read(w.stream)); len(got) != w.acked {
			t.Errorf("%s holds %d records, %d were acked and none is in doubt", w.stream, len(got), w.acked)
		}
	}
	l.check(t, read)
}

// check compares what each stream holds with what was acked: all of it, once, in order, and
// behind it at most what was in doubt.
func (l *load) check(t *testing.T, read func(stream string) string) {
	t.Helper()
	acked := 0
	for _, w := range l.writers {
		got := lines(read(w.stream))
		if len(got) < w.acked || len(got) > w.acked+writerInFlight {
			t.Errorf("%s holds %d records, %d were acked", w.stream, len(got), w.acked)
		}
		for n, line := range got {
			if want := string(w.payload(n)); line != want {
				t.Fatalf("%s: record %d is %.80q, want %.80q", w.stream, n, line, want)
			}
		}
		acked += w.acked
	}
	if acked < len(l.writers) {
		t.Errorf("only %d records were acked: this was no load", acked)
	}
	t.Logf("%d records acked", acked)
}

// stop is SIGSTOP; it returns when the process has stopped.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
}

// carryOn is SIGCONT.
func (p *process) carryOn() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
}
