package doctor

import (
	"strings"
	"testing"

	"github.com/walsidecar/walsidecar/fence"
)

func TestWhoTheHolderIs(t *testing.T) {
	mine, later, other := fence.KeyOf("n1", [16]byte{1}), fence.KeyOf("n1", [16]byte{2}), fence.KeyOf("n2", [16]byte{1})
	log := &Log{Node: "n1", Epoch: 7, Key: mine}
	able := fence.Capabilities{Reservations: fence.Yes}
	held := func(k fence.Key, kind fence.Type) fence.Status { return fence.Status{Holder: k, Type: kind} }
	for _, c := range []struct {
		st   fence.Status
		caps fence.Capabilities
		log  *Log
		want string
	}{
		{fence.Status{}, fence.Capabilities{Reservations: fence.No}, log, "no persistent reservations"},
		{fence.Status{}, able, log, "nobody"},
		{held(mine, fence.WriteExclusive), able, log, "the last owner in the superblock, node n1, epoch 7"},
		{held(later, fence.WriteExclusive), able, log, "written no superblock"},
		{held(other, fence.WriteExclusive), able, log, "another node or program"},
		{held(mine, fence.WriteExclusiveRegistrantsOnly), able, log, "another program"},
		{held(0, fence.WriteExclusiveAllRegistrants), able, log, "another program"},
		{held(mine, fence.WriteExclusive), able, nil, "unknown"},
	} {
		if got := holderIs(c.st, c.caps, c.log); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.st, got, c.want)
		}
	}
	for caps, want := range map[fence.Capabilities]string{
		{Reservations: fence.Yes, WriteExclusive: fence.Yes}: "pr", {Reservations: fence.Yes}: "pr",
		{Reservations: fence.Yes, WriteExclusive: fence.No}: "attach", {Reservations: fence.No}: "attach", {}: "",
	} {
		if got := mode(caps); got != want {
			t.Errorf("%+v: %q, want %q", caps, got, want)
		}
	}
}
