package session

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/walsidecar/walsidecar/wire"
)

// A client that asks for shared memory where there can be none goes on over the socket;
// more WALSIDECAR_MEMORY would not help.
func TestWhatTheKernelLacksIsUnsupported(t *testing.T) {
	for _, c := range []struct {
		err       error
		code      wire.Code
		retriable bool
		hint      string
	}{
		{os.NewSyscallError("memfd_create", syscall.ENOSYS), wire.CodeUnsupported, false, "over the socket"},
		{os.NewSyscallError("fcntl", syscall.EINVAL), wire.CodeUnsupported, false, "over the socket"},
		{os.NewSyscallError("eventfd", syscall.EMFILE), wire.CodeOutOfMemory, true, "open files"},
		{os.NewSyscallError("fallocate", syscall.ENOMEM), wire.CodeOutOfMemory, true, ""},
	} {
		e := noDoor(c.err)
		if e.Code != c.code || e.Code.Info().Retriable != c.retriable || !strings.Contains(e.Hint, c.hint) || !strings.Contains(e.Message, c.err.Error()) {
			t.Errorf("%v: %v %q, hint %q", c.err, e.Code, e.Message, e.Hint)
		}
	}
}
