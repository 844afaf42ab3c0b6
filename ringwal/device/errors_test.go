package device

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestErrorSaysWhereAndWhy(t *testing.T) {
	err := error(&Error{Op: OpWrite, Path: "/dev/nvme1n1", Offset: 1048576, Length: 8192, Err: syscall.EIO})
	want := "/dev/nvme1n1: write of 8192 bytes at offset 1048576: the device failed (input/output error)"
	if err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	err = &Error{Op: OpRead, Path: "wal", Offset: 4096, Length: 8192, Done: 4096, Err: ErrShort}
	if want := "wal: read of 8192 bytes at offset 4096: short transfer (4096 of 8192 bytes)"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	err = &Error{Op: OpFlush, Path: "wal", Err: syscall.EIO}
	if want := "wal: flush: the device failed (input/output error)"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
}

func TestErrorMatchesOperationKindAndErrno(t *testing.T) {
	tests := []struct {
		op    Op
		errno syscall.Errno
		is    []error
		not   []error
	}{
		{OpRead, syscall.EIO, []error{ErrRead, ErrIO}, []error{ErrWrite, ErrNoSpace}},
		{OpWrite, syscall.EIO, []error{ErrWrite, ErrIO}, []error{ErrRead}},
		{OpFlush, syscall.EIO, []error{ErrFlush, ErrIO}, []error{ErrWrite}},
		{OpWrite, syscall.ENOSPC, []error{ErrWrite, ErrNoSpace}, []error{ErrIO}},
		{OpWrite, syscall.EDQUOT, []error{ErrNoSpace}, nil},
		{OpWrite, syscall.EBADE, []error{ErrWrite, ErrReservationConflict}, []error{ErrIO}},
		{OpWrite, syscall.EROFS, []error{ErrReadOnly}, nil},
		{OpWrite, syscall.EPERM, []error{ErrReadOnly}, nil}, // a device set read-only after it was opened
		{OpRead, syscall.ENODATA, []error{ErrIO}, nil},      // the medium failed
		{OpWrite, syscall.ENODEV, []error{ErrIO}, nil},      // detached
		{OpWrite, syscall.EREMOTEIO, []error{ErrIO}, []error{ErrReservationConflict}},
		{OpWrite, syscall.EINVAL, []error{ErrWrite}, []error{ErrIO, ErrReadOnly}},
	}
	for _, tt := range tests {
		err := fmt.Errorf("outer: %w", &Error{Op: tt.op, Path: "d", Err: tt.errno})
		for _, want := range append(tt.is, tt.errno) {
			if !errors.Is(err, want) {
				t.Errorf("%v of %v does not match %v", tt.op, tt.errno, want)
			}
		}
		for _, not := range tt.not {
			if errors.Is(err, not) {
				t.Errorf("%v of %v matches %v", tt.op, tt.errno, not)
			}
		}
	}
}

func TestNowNSNeverGoesBack(t *testing.T) {
	before := NowNS()
	for range 1000 {
		now := NowNS()
		if now < before {
			t.Fatalf("%d after %d", now, before)
		}
		before = now
	}
}
