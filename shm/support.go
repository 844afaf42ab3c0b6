package shm

import (
	"errors"

	"golang.org/x/sys/unix"
)

// lacking are the answers of a kernel that does not do what shared memory needs, or
// does not let this process do it: an old one, an emulator, a sandbox.
var lacking = [...]error{unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.EPERM, unix.EACCES}

// Unsupported reports whether an error of NewDoor says that there can be no shared
// memory here. Any other means that there is not enough of something now.
func Unsupported(err error) bool {
	for _, answer := range lacking {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}
