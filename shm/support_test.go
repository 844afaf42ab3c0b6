package shm

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What the kernel lacks is told apart from what it has too little of.
func TestUnsupportedIsNotOutOfMemory(t *testing.T) {
	for _, answer := range []error{unix.ENOSYS, unix.EINVAL, unix.ENOTSUP, unix.EPERM, unix.EACCES} {
		if err := fmt.Errorf("walsidecar-submission of 65536 bytes: %w", os.NewSyscallError("fcntl", answer)); !Unsupported(err) {
			t.Errorf("%v: not called unsupported", err)
		}
	}
	for _, answer := range []error{unix.ENOMEM, unix.ENOSPC, unix.EMFILE, unix.ENFILE, unix.EAGAIN, errors.New("something new"), nil} {
		if Unsupported(answer) {
			t.Errorf("%v: called unsupported", answer)
		}
	}
}
