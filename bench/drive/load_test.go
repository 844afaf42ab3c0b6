package drive

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

// stalling answers at once, but for one stall of everybody.
type stalling struct {
	g     *generator
	begin chan struct{} // closed: the stall begins
	end   chan struct{} // closed: it is over
}

func (s *stalling) pass() {
	select {
	case <-s.begin:
		<-s.end
	default:
		time.Sleep(100 * time.Microsecond)
	}
}

func (s *stalling) Append(int, []byte) error { s.pass(); return nil }

const stall = 300 * time.Millisecond

// stalled runs a load over a stall and returns what was counted.
func stalled(t *testing.T, c Cell) Counted {
	t.Helper()
	g := newGenerator(c)
	s := &stalling{g: g, begin: make(chan struct{}), end: make(chan struct{})}
	g.phase.Store(measuring)
	g.closed(s)
	close(s.begin)
	time.Sleep(stall)
	close(s.end)
	time.Sleep(20 * time.Millisecond) // some answers after it
	counted, err := g.stop()
	if err != nil {
		t.Fatal(err)
	}
	return counted
}

// In a closed loop the stall is in the latency of one record of each producer.
func TestAStallIsSeenByTheClosedLoop(t *testing.T) {
	if c := stalled(t, Cell{Size: 100, Producers: 4, InFlight: 1}); c.Max < micros(stall)/2 {
		t.Errorf("a stall of %v, the longest latency is %.0f µs", stall, c.Max)
	}
}

// late takes long for its first record, and answers all at once.
type late struct {
	g     *generator
	begun bool
	left  int
}

func (l *late) Submit([]byte) error {
	if !l.begun {
		l.begun = true
		time.Sleep(stall)
	}
	return nil
}

func (l *late) Wait() error {
	if l.left--; l.left < 0 {
		l.g.phase.Store(stopped)
	}
	return nil
}

const lateInFlight = 64

// A pipelined producer that cannot submit is late with all records that there was room
// for, although no call took that long for them.
func TestAStallIsSeenByThePipelinedProducer(t *testing.T) {
	g := newGenerator(Cell{Size: 100, Producers: 1, InFlight: lateInFlight})
	g.phase.Store(measuring)
	g.pipelined(&late{g: g, left: lateInFlight})
	g.running.Wait()
	c, err := g.stop()
	if err != nil {
		t.Fatal(err)
	}
	if c.P50 < micros(stall) {
		t.Errorf("a stall of %v before all records, and half of them took no more than %.0f µs", stall, c.P50)
	}
}

func TestPercentiles(t *testing.T) {
	g := newGenerator(Cell{Size: 1, Producers: 16, InFlight: 1})
	for i := range 10_000 {
		g.count(i%16, time.Duration(i+1)*time.Microsecond)
	}
	c, err := g.stop()
	if err != nil {
		t.Fatal(err)
	}
	if c.Appends != 10_000 || c.Max != 10_000 {
		t.Errorf("%+v", c)
	}
	for _, q := range []struct{ got, want float64 }{{c.P50, 5000}, {c.P99, 9900}, {c.P999, 9990}} {
		if q.got < q.want || q.got > q.want*1.005 {
			t.Errorf("%.1f µs, it is %.1f", q.got, q.want)
		}
	}
}

// counting answers at once, and ends the measurement after so many.
type counting struct {
	g        *generator
	left     int
	inFlight int
	most     int
}

func (c *counting) Submit([]byte) error {
	c.inFlight++
	c.most = max(c.most, c.inFlight)
	return nil
}

func (c *counting) Wait() error {
	c.inFlight--
	if c.left--; c.left == 0 {
		c.g.phase.Store(stopped)
	}
	return nil
}

// Each answer in the measured time is counted once, timed or not, and none beside it.
func TestThePipelineCountsEachAnswer(t *testing.T) {
	const answers, inFlight = 1000, 32
	g := newGenerator(Cell{Size: 10, Producers: 1, InFlight: inFlight})
	to := &counting{g: g, left: answers}
	g.phase.Store(measuring)
	g.pipelined(to)
	g.running.Wait()
	counted, err := g.stop()
	if err != nil {
		t.Fatal(err)
	}
	if counted.Appends != answers-1 { // the last came as the time was over
		t.Errorf("%d were counted of %d", counted.Appends, answers-1)
	}
	if to.most != inFlight {
		t.Errorf("%d were in flight at most", to.most)
	}
	if to.inFlight != 0 {
		t.Errorf("%d were not waited for", to.inFlight)
	}
}

// What is answered before the measured time does not count.
func TestTheWarmUpDoesNotCount(t *testing.T) {
	g := newGenerator(Cell{Size: 10, Producers: 1, InFlight: 4})
	to := &counting{g: g, left: 100}
	g.pipelined(to)
	g.running.Wait()
	if counted, _ := g.stop(); counted.Appends != 0 {
		t.Errorf("%d were counted", counted.Appends)
	}
}

type failing struct{}

func (failing) Append(int, []byte) error { return errors.New("no") }

func TestAFailedAppendEndsTheLoad(t *testing.T) {
	g := newGenerator(Cell{Size: 10, Producers: 3, InFlight: 1})
	g.closed(failing{})
	g.running.Wait()
	if _, err := g.stop(); err == nil {
		t.Error("the error is lost")
	}
}

// Records are all of the size asked for, and no two in a row the same.
func TestRecordsAreCutAroundTheEnd(t *testing.T) {
	g := newGenerator(Cell{Size: 1 << 20})
	c := g.records(255)
	var last []byte
	for range 2 * payloadBytes >> 20 {
		r := c.next()
		if len(r) != 1<<20 {
			t.Fatalf("a record has %d bytes", len(r))
		}
		if last != nil && &r[0] == &last[0] {
			t.Fatal("the same record twice in a row")
		}
		last = r
	}
}

// saying is a load program that prints one line and then what it was told to.
type saying struct{ script string }

func (s saying) Open(context.Context, Setup) error { return nil }
func (s saying) Close() error                      { return nil }
func (s saying) LoadCommand() *exec.Cmd            { return exec.Command("sh", "-c", s.script) }

func TestALoadProgramIsToldWhenToCount(t *testing.T) {
	const script = `echo ready; read a; read b; test "$a $b" = "measure stop" && echo '{"appends":7,"p50_us":1.5,"p99_us":2,"p999_us":3,"max_us":4}'`
	r, err := Measure(t.Context(), saying{script}, Setup{Cell: Cell{Size: 100, Producers: 1, InFlight: 1}}, Times{Measure: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.Appends != 7 || r.P50 != 1.5 || r.Max != 4 || r.AppendsPerSecond == 0 {
		t.Errorf("%+v", r)
	}
}

func TestALoadProgramThatFailsIsAnError(t *testing.T) {
	for _, script := range []string{"exit 1", "echo what", "echo ready; exit 1", "echo ready; echo '{'", `echo ready; read a; read b; echo '{}'; exit 1`} {
		if _, err := Measure(t.Context(), saying{script}, Setup{}, Times{}); err == nil {
			t.Errorf("%q was taken for a result", script)
		}
	}
}

// Nothing to append with is said, and only one producer is pipelined.
func TestACellThatDoesNotFitIsRefused(t *testing.T) {
	for _, c := range []Cell{{Producers: 2, InFlight: 2}, {Producers: 1, InFlight: 1}} {
		g := newGenerator(c)
		if _, err := start(g, nothing{}); err == nil {
			t.Errorf("%+v was begun", c)
		}
	}
}

type nothing struct{}

func (nothing) Open(context.Context, Setup) error { return nil }
func (nothing) Close() error                      { return nil }
