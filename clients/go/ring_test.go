package walsidecar

import (
	"errors"
	"testing"
)

// A sidecar of a version without shared memory: the client that insists is told so by
// name, any other takes the socket.
func TestOldSidecarHasNoSharedMemory(t *testing.T) {
	f := newFakeSidecar(t)
	if _, err := Dial(testContext(t), f.path, WithDoor(DoorShm)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("the client that insists got %v", err)
	}
	c := dial(t, f.path)
	if _, err := c.Append(testContext(t), "s", []byte("x")); err != nil {
		t.Error(err)
	}
}
