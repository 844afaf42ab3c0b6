package walsidecar

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/wire"
)

var seedFlag = flag.Uint64("seed", 0, "replays the random tests from this seed")

// seed returns the seed of a random test and prints how to replay it.
func seed(t *testing.T) uint64 {
	s := *seedFlag
	if v, err := strconv.ParseUint(os.Getenv("WALSIDECAR_SEED"), 10, 64); err == nil && s == 0 {
		s = v
	}
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("replay with -seed=%d or WALSIDECAR_SEED=%d", s, s)
	return s
}

// pipeline submits n numbered records to one stream, waits for all, and reports
// the results.
func pipeline(t *testing.T, c *Client, stream string, n int) ([]Result, []error) {
	t.Helper()
	ctx := testContext(t)
	results, errs := make([]Result, n), make([]error, n)
	tickets := make([]Ticket, n)
	for i := range n {
		tickets[i], errs[i] = c.Submit(ctx, stream, fmt.Appendf(nil, "%d", i))
	}
	for i := range n {
		if errs[i] == nil {
			results[i], errs[i] = tickets[i].Wait(ctx)
		}
	}
	return results, errs
}

// numbers are the payloads "from" to "to"-1.
func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func TestP2_EachRecordIsInTheLogOnceWhereverTheConnectionBreaks(t *testing.T) {
	const records = 6
	for _, what := range []fate{dieBefore, dieAfter, dieHalfway} {
		for at := 1; at <= records; at++ {
			t.Run(fmt.Sprintf("fate %d at append %d", what, at), func(t *testing.T) {
				f := newFakeSidecar(t)
				f.fate = func(n int) fate {
					if n == at {
						return what
					}
					return serve
				}
				results, errs := pipeline(t, dial(t, f.path), "s", records)
				for i := range records {
					if errs[i] != nil || results[i].Offset != uint64(i) {
						t.Errorf("record %d: %+v, %v", i, results[i], errs[i])
					}
				}
				if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, records)) {
					t.Errorf("the log has %q", got)
				}
			})
		}
	}
}

func TestP2_ConnectionThatBreaksAtEveryAppendMakesProgress(t *testing.T) {
	f := newFakeSidecar(t)
	f.fate = func(n int) fate { return []fate{dieAfter, dieHalfway, serve, dieBefore}[n%4] }
	_, errs := pipeline(t, dial(t, f.path), "s", 40)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 40)) {
		t.Errorf("the log has %q", got)
	}
}

func TestP2_LogRefusalThatWasNotHeardIsAnsweredAgain(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", []byte("0")); err != nil {
		t.Fatal(err)
	}
	f.fate = func(n int) fate {
		if n == 2 {
			return dieAfter
		}
		return serve
	}
	refused, err := c.Submit(ctx, "s", []byte("x"), ExpectOffset(5))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.Append(ctx, "s", []byte("1")); err != nil || r.Offset != 1 {
		t.Errorf("the record behind the refused one: %+v, %v", r, err)
	}
	var refusal *Error
	if _, err := refused.Wait(ctx); !errors.As(err, &refusal) || *refusal.Actual != 1 {
		t.Errorf("the refusal, heard over the second connection: %v", err)
	}
}

// The log has the record, its answer was lost, and the repetition is refused for a
// reason that says nothing of the record: it must not go under another sequence.
func TestP2_RefusedRepetitionKeepsItsSequence(t *testing.T) {
	f := newFakeSidecar(t)
	f.fate = func(n int) fate {
		switch n {
		case 1:
			return dieAfter
		case 2:
			return refuseOnce
		}
		return serve
	}
	results, errs := pipeline(t, dial(t, f.path), "s", 3)
	for i := range results {
		if errs[i] != nil || results[i].Offset != uint64(i) {
			t.Errorf("record %d: %+v, %v", i, results[i], errs[i])
		}
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 3)) {
		t.Errorf("the log has %q", got)
	}
}

// What was answered behind a repetition that has to come once more is kept by the log until
// that one is answered: it takes room of the window, though it is in flight no more.
func TestP2_WhatTheLogKeepsBehindARefusedRepetitionTakesRoom(t *testing.T) {
	f := newFakeSidecar(t)
	submitted := make(chan struct{})
	f.fate = func(n int) fate {
		switch n {
		case 1:
			return dieAfter
		case 2:
			return refuseOnce // and 2 to 4 are answered
		case 6:
			select { // the record that would be one too many has time to be sent
			case <-submitted:
			case <-time.After(50 * time.Millisecond):
			}
		}
		return serve
	}
	c := dial(t, f.path, WithInFlight(4, 1<<20))
	ctx := testContext(t)
	var tickets []Ticket
	for i := range 8 {
		ticket, err := c.Submit(ctx, "s", fmt.Appendf(nil, "%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if tickets = append(tickets, ticket); i == 6 { // 4 to 6 are in flight beside the repetition
			close(submitted)
		}
	}
	for i := range tickets {
		if r, err := tickets[i].Wait(ctx); err != nil || r.Offset != uint64(i) {
			t.Errorf("record %d: %+v, %v", i, r, err)
		}
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 8)) {
		t.Errorf("the log has %q", got)
	}
}

func TestSidecarThatDrainsIsWaitedFor(t *testing.T) {
	f := newFakeSidecar(t)
	draining := true
	f.fate = func(int) fate {
		if draining {
			return drain
		}
		return serve
	}
	c := dial(t, f.path)
	go func() {
		time.Sleep(30 * time.Millisecond)
		f.stop()
		draining = false
		f.start()
	}()
	_, errs := pipeline(t, c, "s", 20)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if got := f.log.payloads("s"); !slices.Equal(got, numbers(0, 20)) {
		t.Errorf("the log has %q", got)
	}
}

// introduced makes a client ready to append to a stream without asking for anything.
func introduced(t *testing.T, c *Client, stream string) {
	t.Helper()
	for _, m := range []missing{{stream: stream}, {session: true}} {
		if err := c.learn(testContext(t), m, false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExpiredProducerEndsWhatWasSentWithUnknownOutcome(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	introduced(t, c, "s")
	f.fate = func(n int) fate {
		if n == 1 {
			clear(f.log.sessions)
			return dieAfter // the log has forgotten the producer meanwhile
		}
		return serve
	}
	f.log.mu.Lock()
	sent, err := c.Submit(ctx, "s", []byte("sent"))
	if err != nil {
		t.Fatal(err)
	}
	f.log.mu.Unlock()
	if _, err := sent.Wait(ctx); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrProducerExpired) {
		t.Errorf("the record that was sent ended with %v", err)
	}
	if r, err := c.Append(ctx, "s", []byte("after")); err != nil || r.Offset != 0 {
		t.Errorf("an append afterwards: %+v, %v", r, err)
	}
	if got := f.log.payloads("s"); !slices.Equal(got, []string{"after"}) {
		t.Errorf("the log has %q", got)
	}
}

// A client that lost nothing, since nothing of it was answered, goes on under another
// producer.
func TestExpiredProducerOfAClientThatHeardNothingIsReplacedInSilence(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	introduced(t, c, "s")
	f.stop()
	clear(f.log.sessions)
	tickets := make([]Ticket, 3)
	for i := range tickets { // submitted while there is no sidecar
		waitUntil(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.conn == nil })
		var err error
		if tickets[i], err = c.Submit(ctx, "s", fmt.Appendf(nil, "%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	for i, ticket := range tickets {
		if r, err := ticket.Wait(ctx); err != nil || r.Offset != uint64(i) {
			t.Errorf("record %d: %+v, %v", i, r, err)
		}
	}
}

// A log that does not have what it had acked ends the client, which would else leave a
// hole where those records were.
func TestP2_ALogThatWentBackEndsTheClient(t *testing.T) {
	for name, back := range map[string]func(l *fakeLog){
		"its producer is behind what it acked": func(l *fakeLog) {
			for _, p := range l.sessions {
				p.last = 1
			}
		},
		"it does not know the producer":     func(l *fakeLog) { clear(l.sessions) },
		"its end lies below what it showed": func(l *fakeLog) { l.position /= 2 },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeSidecar(t)
			c := dial(t, f.path)
			ctx := testContext(t)
			for i := range 3 {
				if _, err := c.Append(ctx, "s", fmt.Appendf(nil, "%d", i)); err != nil {
					t.Fatal(err)
				}
			}
			f.stop()
			f.log.mu.Lock()
			back(f.log)
			before := f.log.committed
			f.log.mu.Unlock()
			waitUntil(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.conn == nil })
			ticket, err := c.Submit(ctx, "s", []byte("3"))
			if err != nil {
				t.Fatal(err)
			}
			f.start()
			if _, err := ticket.Wait(ctx); !errors.Is(err, ErrLogWentBack) || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("the record that was not sent ended with %v", err)
			}
			if _, err := c.Append(ctx, "s", []byte("4")); !errors.Is(err, ErrLogWentBack) {
				t.Errorf("afterwards: %v", err)
			}
			if f.log.committed != before {
				t.Errorf("%d records were appended to a log that had lost some", f.log.committed-before)
			}
		})
	}
}

// What was on its way when the log went back may have been in it, and is not any more.
func TestP2_ALogThatWentBackLeavesUnansweredOutcomesUnknown(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", []byte("0")); err != nil {
		t.Fatal(err)
	}
	f.fate = func(n int) fate {
		if n == 2 {
			for _, p := range f.log.sessions {
				p.last = 0
			}
			return dieBefore
		}
		return serve
	}
	if _, err := c.Append(ctx, "s", []byte("1")); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrLogWentBack) {
		t.Errorf("the record that was sent ended with %v", err)
	}
}

func TestAnotherLogAtTheSocketEndsTheClient(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", []byte("0")); err != nil {
		t.Fatal(err)
	}
	f.fate = func(int) fate { return dieBefore }
	ticket, err := c.Submit(ctx, "s", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	f.log.mu.Lock()
	f.log.uuid[0]++
	f.log.mu.Unlock()
	f.kick()
	if _, err := ticket.Wait(ctx); !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrWrongLog) {
		t.Errorf("the record in flight ended with %v", err)
	}
	waitUntil(t, func() bool { return errors.Is(second(c.Append(ctx, "s", nil)), ErrWrongLog) })
}

func TestGivingUpEndsWhatWaits(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path, WithGiveUpAfter(500*time.Millisecond))
	ctx := testContext(t)
	if _, err := c.Append(ctx, "s", nil); err != nil {
		t.Fatal(err)
	}
	f.fate = func(int) fate { return dieBefore }
	sent, err := c.Submit(ctx, "s", []byte("sent"))
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { f.log.mu.Lock(); defer f.log.mu.Unlock(); return f.appends >= 2 })
	f.stop()
	// Not before a connection was refused: one that was accepted just before takes more.
	waitUntil(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.conn == nil && errors.Is(c.lost, os.ErrNotExist)
	})
	unsent, err := c.Submit(ctx, "s", []byte("unsent"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sent.Wait(ctx); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("what was sent ended with %v", err)
	}
	if _, err := unsent.Wait(ctx); !errors.Is(err, ErrDisconnected) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("what was not sent ended with %v", err)
	}
	if _, err := c.Stat(ctx, "s"); !errors.Is(err, ErrDisconnected) {
		t.Errorf("afterwards: %v", err)
	}
}

func TestDialTellsAbsenceFromRefusal(t *testing.T) {
	f := newFakeSidecar(t)
	if _, err := Dial(testContext(t), f.path+".not"); !errors.Is(err, ErrDisconnected) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	f.log.mu.Lock() // there, but silent
	defer f.log.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, f.path); !errors.Is(err, ErrDisconnected) {
		t.Errorf("a silent sidecar: %v", err)
	}
}

func TestCallsThatDoNoHarmAreRepeatedAndOthersAreNot(t *testing.T) {
	f := newFakeSidecar(t)
	c := dial(t, f.path)
	ctx := testContext(t)
	if _, err := c.CreateStream(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	kicked := false
	f.seen = func(h wire.Header, _ []byte) {
		if !kicked && (h.Type == wire.TypeStreamTrim || h.Type == wire.TypeStreamDelete) {
			kicked = true
			f.kick()
		}
	}
	if _, err := c.Trim(ctx, "s", 1); err != nil {
		t.Errorf("trim over a lost connection: %v", err)
	}
	f.log.mu.Lock()
	kicked = false
	f.log.mu.Unlock()
	if err := c.DeleteStream(ctx, "s"); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("delete over a lost connection: %v", err)
	}
}

// misfortune makes a fakeSidecar die, drain and fill up at random; once is what
// becomes of single appends now and then.
func misfortune(f *fakeSidecar, random *rand.Rand, once fate) {
	f.fate = func(int) fate { // called under the log's mutex
		switch random.IntN(60) {
		case 0:
			return dieBefore
		case 1:
			return dieAfter
		case 2:
			return dieHalfway
		case 3:
			return drain
		case 4:
			return once
		case 5:
			if f.log.roomFor < 0 {
				f.log.roomFor = random.IntN(20)
			}
		}
		if f.log.roomFor == 0 && random.IntN(20) == 0 {
			f.log.roomFor = -1
		}
		return serve
	}
}

// restartUntil restarts f at random until all writers have ended, and then checks
// that each stream has its records once, in order.
func restartUntil(t *testing.T, f *fakeSidecar, random *rand.Rand, writers *sync.WaitGroup, streams, records int) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		writers.Wait()
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Duration(random.IntN(20)) * time.Millisecond):
			f.restart()
		}
	}
	for w := range streams {
		got, at := f.log.payloads(fmt.Sprintf("s%d", w)), 0
		for at < min(len(got), records) && got[at] == strconv.Itoa(at) {
			at++
		}
		if at < records || len(got) > records {
			t.Errorf("stream %d has %d records, which go wrong at %d: %q", w, len(got), at, got[at:min(at+5, len(got))])
		}
	}
}

func TestP2_RandomRestarts(t *testing.T) {
	s := seed(t)
	f := newFakeSidecar(t)
	misfortune(f, rand.New(rand.NewPCG(s, 1)), refuseOnce)
	c := dial(t, f.path, WithWaitWhileFull(), WithInFlight(64, 1<<20))
	const streams, records = 6, 200
	var writers sync.WaitGroup
	for w := range streams {
		writers.Go(func() {
			results, errs := pipeline(t, c, fmt.Sprintf("s%d", w), records)
			for i := range records {
				if errs[i] != nil || results[i].Offset != uint64(i) {
					t.Errorf("writer %d, record %d: %+v, %v", w, i, results[i], errs[i])
					return
				}
			}
		})
	}
	restartUntil(t, f, rand.New(rand.NewPCG(s, 2)), &writers, streams, records)
}

// TestP2_RandomRestartsOfALogThatFills has writers that hear of the full log, and
// submit what was refused again; some of their records no log would take.
func TestP2_RandomRestartsOfALogThatFills(t *testing.T) {
	s := seed(t)
	f := newFakeSidecar(t)
	misfortune(f, rand.New(rand.NewPCG(s, 1)), serve)
	c := dial(t, f.path, WithInFlight(64, 1<<20))
	const streams, records, round = 4, 120, 20
	var writers sync.WaitGroup
	for w := range streams {
		random := rand.New(rand.NewPCG(s, uint64(w+10)))
		writers.Go(func() {
			for next := 0; next < records; {
				accepted, err := submitRound(testContext(t), c, fmt.Sprintf("s%d", w), next, min(next+round, records), random)
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				next += accepted
			}
		})
	}
	restartUntil(t, f, rand.New(rand.NewPCG(s, 2)), &writers, streams, records)
}

// submitRound submits the records from to to-1, each at its own offset, some
// refusable ones between, and returns how many were accepted.
func submitRound(ctx context.Context, c *Client, stream string, from, to int, random *rand.Rand) (accepted int, err error) {
	var tickets, refusable []Ticket
	for i := from; i < to; i++ {
		if random.IntN(10) == 0 {
			ticket, err := c.Submit(ctx, stream, []byte("!"))
			if err == nil {
				refusable = append(refusable, ticket)
			} else if !errors.Is(err, ErrLogFull) {
				return 0, err
			}
		}
		ticket, err := c.Submit(ctx, stream, []byte(strconv.Itoa(i)), ExpectOffset(uint64(i)))
		if errors.Is(err, ErrLogFull) {
			break
		}
		if err != nil {
			return 0, err
		}
		tickets = append(tickets, ticket)
	}
	for _, ticket := range refusable {
		if _, err := ticket.Wait(ctx); !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrLogFull) {
			return 0, fmt.Errorf("a record that no log takes: %w", err)
		}
	}
	full := false
	for i, ticket := range tickets {
		_, err := ticket.Wait(ctx)
		switch {
		case err == nil && full:
			return 0, fmt.Errorf("record %d was accepted behind one that was refused", from+i)
		case errors.Is(err, ErrLogFull), errors.Is(err, ErrPreconditionFailed) && full:
			full = true
		case err != nil:
			return 0, err
		default:
			accepted++
		}
	}
	return accepted, nil
}
