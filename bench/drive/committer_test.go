package drive

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"
)

// gate is a batcher whose writes end when they are told to.
type gate struct {
	writes chan [][]byte // begun
	end    chan error
}

func newGate() *gate { return &gate{writes: make(chan [][]byte), end: make(chan error)} }

func (g *gate) AppendBatch(records [][]byte) error {
	g.writes <- append([][]byte(nil), records...)
	return <-g.end
}

func answered(b *batch) bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// An append is answered by the end of the write that holds it: not by its begin, and not
// by the end of a write before.
func TestCommitterAnswersOnlyAfterTheWrite(t *testing.T) {
	g := newGate()
	c := newCommitter(g)
	first := c.submit([]byte("a"))
	if w := <-g.writes; len(w) != 1 || string(w[0]) != "a" {
		t.Fatalf("the first write holds %q", w)
	}
	second := c.submit([]byte("b"))
	third := c.submit([]byte("c"))
	if answered(first) || answered(second) {
		t.Fatal("answered while the write is on its way")
	}
	g.end <- nil
	if err := first.wait(); err != nil {
		t.Fatal(err)
	}
	w := <-g.writes
	if len(w) != 2 || !bytes.Equal(w[0], []byte("b")) || !bytes.Equal(w[1], []byte("c")) {
		t.Fatalf("the second write holds %q", w)
	}
	if answered(second) || answered(third) {
		t.Fatal("answered by the write before")
	}
	failed := errors.New("the device is gone")
	g.end <- failed
	if err := second.wait(); !errors.Is(err, failed) {
		t.Fatalf("the second append got %v", err)
	}
	if err := third.wait(); !errors.Is(err, failed) {
		t.Fatalf("the third append got %v", err)
	}
	c.close()
	if err := c.submit([]byte("d")).wait(); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
	if c.batches.Load() != 2 || c.records.Load() != 3 {
		t.Errorf("%d batches of %d records", c.batches.Load(), c.records.Load())
	}
}

// kept keeps all records.
type kept struct {
	mu  sync.Mutex
	all map[string]int
}

func (k *kept) AppendBatch(records [][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range records {
		k.all[string(r)]++
	}
	return nil
}

// However many append at once, each record is in one write, and in it once it is answered.
func TestCommitterLosesAndDoublesNothing(t *testing.T) {
	k := &kept{all: map[string]int{}}
	c := newCommitter(k)
	const producers, each = 16, 200
	var group sync.WaitGroup
	for p := range producers {
		group.Go(func() {
			for i := range each {
				record := []byte{byte(p), byte(i), byte(i >> 8)}
				if err := c.Append(p, record); err != nil {
					t.Error(err)
				}
				k.mu.Lock()
				n := k.all[string(record)]
				k.mu.Unlock()
				if n != 1 {
					t.Errorf("%v was written %d times when it was answered", record, n)
				}
			}
		})
	}
	group.Wait()
	c.close()
	if len(k.all) != producers*each {
		t.Errorf("%d records were written", len(k.all))
	}
}

// What was submitted before the close is written.
func TestCommitterWritesWhatIsLeft(t *testing.T) {
	k := &kept{all: map[string]int{}}
	c := newCommitter(k)
	b := c.submit([]byte("last"))
	c.close()
	if err := b.wait(); err != nil || k.all["last"] != 1 {
		t.Errorf("%v, %v", err, k.all)
	}
}

// A pipe waits in the order of submission.
func TestPipeWaitsForTheOldest(t *testing.T) {
	g := newGate()
	c := newCommitter(g)
	p := newPipe(c, 2)
	if err := errors.Join(p.Submit([]byte("a")), p.Submit([]byte("b"))); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 2)
	go func() { waited <- p.Wait(); waited <- p.Wait() }()
	<-g.writes
	select {
	case <-waited:
		t.Fatal("waited for nothing")
	case <-time.After(time.Millisecond):
	}
	g.end <- nil
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.writes: // b was not in the first write
		g.end <- errors.New("b")
		if err := <-waited; err == nil {
			t.Error("the error of b is lost")
		}
	case err := <-waited: // it was
		if err != nil {
			t.Error(err)
		}
	}
	c.close()
}
