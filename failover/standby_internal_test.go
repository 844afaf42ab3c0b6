package failover

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/fence"
	"github.com/walsidecar/walsidecar/node"
)

// tape is a clock that a test advances by sleeping, and an owner whose superblocks follow a
// script: one letter a look.
type tape struct {
	now    time.Duration
	script string // t: a tick; .: nothing new; c: closed in order; x: cannot be read; n: a new epoch; S: the standby itself was stopped before
	looks  int
	id     node.Identity
	takes  []int // at which look it was taken over
	result error
}

func (c *tape) Now() time.Duration { return c.now }

func (c *tape) Sleep(_ context.Context, d time.Duration) error {
	if c.looks >= len(c.script) {
		return context.Canceled
	}
	c.now += d
	return nil
}

func (c *tape) identify(string, string) (*node.Identity, error) {
	step := byte('.')
	if c.looks < len(c.script) {
		step = c.script[c.looks]
	}
	c.looks++
	switch step {
	case 't':
		c.id.Sequence++
	case 'c':
		c.id.Sequence++
		c.id.Owner.Clean = true
	case 'n':
		c.id.Sequence++
		c.id.Owner.Epoch++
		c.id.Owner.Clean = false
	case 'S':
		c.now += time.Hour
	case 'x':
		return nil, errors.New("the test says so")
	}
	id := c.id
	return &id, nil
}

func (c *tape) takeover(context.Context, Options) (*Report, error) {
	c.takes = append(c.takes, c.looks)
	if c.result == nil {
		c.id.Sequence++
		c.id.Owner.Epoch++
		c.id.Owner.Clean = true
	}
	return &Report{}, c.result
}

func TestWhenAStandbyTakesOver(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		epoch  uint64
		detect string
		result error
		takes  []int
	}{
		"silent from the start":                {script: "......", epoch: 1, takes: []int{6}},
		"alive":                                {script: "t.t.t..tt...t....t", epoch: 1},
		"alive, then silent":                   {script: "t.t......", epoch: 1, takes: []int{8}},
		"closed in order":                      {script: "tttc..................", epoch: 1},
		"formatted, never served":              {script: "..........", epoch: 0},
		"drained, served again, silent":        {script: "......" + "...n......", epoch: 1, takes: []int{6, 15}},
		"cannot be read for a while":           {script: "....xx......", epoch: 1, takes: []int{11}},
		"the standby was stopped":              {script: "....S......", epoch: 1, takes: []int{10}},
		"refused: after a pause":               {script: ".....................", epoch: 1, result: fence.ErrHeld, takes: []int{6, 10, 13, 19}},
		"a detector says dead":                 {script: "tt", epoch: 1, detect: "exit 0;", takes: []int{1}},
		"a detector says alive":                {script: "..............", epoch: 1, detect: "exit 1;"},
		"a detector knows the device and node": {script: "t", epoch: 1, detect: `sh -c '[ "$1 $2" = "dev peer-1" ]' -`, takes: []int{1}},
		"a detector that fails":                {script: "..............", epoch: 1, detect: "exit 3;"},
	} {
		t.Run(name, func(t *testing.T) {
			x := &tape{script: c.script, now: time.Hour, result: c.result}
			x.id.Owner = fence.Owner{Node: "peer-1", Epoch: c.epoch}
			w := &watcher{log: slog.New(slog.DiscardHandler), identify: x.identify, takeover: x.takeover}
			w.o = StandbyOptions{Options: Options{Device: "dev"}, SilentFor: 5 * time.Second, Detect: c.detect, Clock: x, Taken: func(*Report) {}}
			w.run(t.Context())
			if len(x.takes) != len(c.takes) {
				t.Fatalf("taken over at %v, want %v", x.takes, c.takes)
			}
			for i := range c.takes {
				if x.takes[i] != c.takes[i] {
					t.Errorf("taken over at %v, want %v", x.takes, c.takes)
				}
			}
		})
	}
}
