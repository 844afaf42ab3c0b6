package fence

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AnswerWithin is how long one command may take. An abort waits for the victim's writes;
// a target that does not answer for so long is taken for one that never will.
const AnswerWithin = 30 * time.Second

// The ioctls of linux/pr.h and linux/nvme_ioctl.h that are used here.
const (
	iocRegister        = 0x401870c8 // struct prRegistration
	iocReserve         = 0x401070c9 // struct prReservation
	iocPreempt         = 0x401870cb // struct prPreempt
	iocPreemptAbort    = 0x401870cc // struct prPreempt
	iocClear           = 0x401070cd // struct prClear
	iocReadKeys        = 0xc01070ce // struct prReadKeys; since Linux 7.0
	iocReadReservation = 0x801070cf // struct prReadReservation; since Linux 7.0
	iocNVMeID          = 0x4e40
	iocNVMeAdmin       = 0xc0484e41 // struct nvmeCommand
	iocNVMeIO          = 0xc0484e43 // struct nvmeCommand
	iocSGVersion       = 0x2282
	iocSGIO            = 0x2285
)

const prIgnoreKey = 1 // PR_FL_IGNORE_KEY

type (
	prRegistration struct {
		oldKey, newKey Key
		flags, _       uint32
	}
	prReservation struct {
		key         Key
		kind, flags uint32
	}
	// prPreempt: oldKey is the caller's own key and newKey the victim's, whatever the
	// kernel's documentation says.
	prPreempt struct {
		oldKey, newKey Key
		kind, flags    uint32
	}
	prClear struct {
		key      Key
		flags, _ uint32
	}
	prReadKeys struct {
		generation, numKeys uint32
		keys                uint64 // address
	}
	prReadReservation struct {
		key              Key
		generation, kind uint32
	}
)

// kernel is the reservation commands of a block device as the kernel offers them. It
// implements Target.
type kernel struct {
	path      string
	fd        int
	transport Transport
	namespace uint32 // NVMe
	readable  bool   // the kernel has the two read ioctls
	persists  Tri    // what the last registration of this process came to
}

func (k *kernel) Register(old, key Key, ignore bool) error {
	arg := prRegistration{oldKey: old, newKey: key}
	if ignore {
		arg.flags = prIgnoreKey
	}
	if err := k.command(iocRegister, unsafe.Pointer(&arg)); err != nil {
		return err
	}
	k.persists = k.persistence()
	return nil
}

func (k *kernel) Reserve(own Key) error {
	return k.command(iocReserve, unsafe.Pointer(&prReservation{key: own, kind: uint32(WriteExclusive)}))
}

func (k *kernel) Preempt(own, victim Key, abort bool) error {
	request := uintptr(iocPreempt)
	if abort {
		request = iocPreemptAbort
	}
	return k.command(request, unsafe.Pointer(&prPreempt{oldKey: own, newKey: victim, kind: uint32(WriteExclusive)}))
}

func (k *kernel) Clear(own Key) error {
	return k.command(iocClear, unsafe.Pointer(&prClear{key: own}))
}

// Unregister goes by passthrough on NVMe: there the ioctl leaves key 0 registered and the
// reservation held.
func (k *kernel) Unregister(own Key) error {
	if k.transport == NVMe {
		return k.nvmeUnregister(own)
	}
	return k.command(iocRegister, unsafe.Pointer(&prRegistration{oldKey: own}))
}

func (k *kernel) Close() error { return unix.Close(k.fd) }

// readTries is how often a status that changes while it is read is read again.
const readTries = 5

func (k *kernel) Read() (Status, error) {
	var st Status
	var err error
	for range readTries {
		switch {
		case k.readable:
			st, err = k.readByKernel()
		case k.transport == NVMe:
			st, err = k.nvmeReport()
		default:
			st, err = k.scsiStatus()
		}
		if !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return Status{}, fmt.Errorf("%s: read its reservation: %w", k.path, err)
	}
	if st.Persists == Unknown {
		st.Persists = k.persists
	}
	return st, nil
}

// errChanged is a status whose two halves do not fit.
var errChanged = errors.New("it changes faster than it can be read")

func (k *kernel) readByKernel() (Status, error) {
	st, err := k.readKeys()
	if err != nil {
		return st, err
	}
	var held prReadReservation
	if err := k.ioctl(iocReadReservation, unsafe.Pointer(&held)); err != nil {
		return st, err
	}
	if held.kind > uint32(ExclusiveAccessAllRegistrants) {
		return st, fmt.Errorf("%w: reservation type %d", ErrMalformed, held.kind)
	}
	st.Holder, st.Type = held.key, Type(held.kind)
	// SCSI gives generation 0 where nothing is held. Reserving does not move it on.
	if st.Type != NoReservation && held.generation != st.Generation || st.Holder != 0 && !st.Has(st.Holder) {
		return st, errChanged
	}
	return st, nil
}

func (k *kernel) readKeys() (Status, error) {
	for n := uint32(64); ; n *= 4 {
		keys := make([]Key, n)
		arg := prReadKeys{numKeys: n, keys: uint64(uintptr(unsafe.Pointer(&keys[0])))}
		err := k.ioctl(iocReadKeys, unsafe.Pointer(&arg), keys)
		switch {
		case err != nil:
			return Status{}, err
		case arg.numKeys <= n:
			return Status{Generation: arg.generation, Keys: keys[:arg.numKeys]}, nil
		case n >= maxRegistrants:
			return Status{}, fmt.Errorf("%w: %d registrants", ErrMalformed, arg.numKeys)
		}
	}
}

// persistence asks whether registrations outlive a power loss, now that one was made.
func (k *kernel) persistence() Tri {
	switch k.transport {
	case NVMe:
		if st, err := k.nvmeReport(); err == nil {
			return st.Persists
		}
	case SCSI:
		if _, active, err := k.scsiCapabilities(); err == nil {
			return triOf(active)
		}
	}
	return Unknown
}

// attentionTries is how often a command is sent again that failed on a SCSI disk: its
// first answer may be that something changed, such as an earlier preempt of this host,
// and not every kernel sends the command again by itself. What was carried out all the
// same is then refused, or changes nothing.
const attentionTries = 3

// command carries out a command that changes something.
func (k *kernel) command(request uintptr, arg unsafe.Pointer) error {
	err := k.ioctl(request, arg)
	for i := 0; i < attentionTries && k.transport == SCSI && errors.Is(err, ErrFailed); i++ {
		err = k.ioctl(request, arg)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	return nil
}

// prStatus is a positive return of a reservation ioctl: enum pr_status of linux/pr.h.
const (
	prConflict         = 0x18
	prIOError          = 0x2
	prPathRetry        = 0xe0000
	prPathFastFail     = 0xf0000
	prPathFailed       = 0x10000
	nvmeConflict       = 0x83 // NVMe status, generic command status
	nvmeBadField       = 0x02
	nvmeHostIDMismatch = 0x18
	nvmeStatusMask     = 0x7ff // type and code, without "do not retry" and "more"
)

// ioctl makes one reservation ioctl; a return other than 0 is an error, even without
// errno.
func (k *kernel) ioctl(request uintptr, arg unsafe.Pointer, keep ...any) error {
	status, err := k.call(request, arg, keep...)
	if err != nil || status == 0 {
		return err
	}
	switch status {
	case prConflict:
		return ErrConflict
	case prIOError, prPathRetry, prPathFastFail, prPathFailed:
		return fmt.Errorf("%w (status %#x)", ErrFailed, status)
	}
	if k.transport == NVMe && status&nvmeStatusMask == nvmeConflict {
		return ErrConflict
	}
	return fmt.Errorf("the device answered status %#x", status)
}

// call makes one ioctl and gives up when it does not return: a thread that is stuck in the
// kernel cannot be ended, only left behind. keep is the memory whose addresses stand in
// arg: it goes to the heap, where it does not move, and lives as long as the kernel may
// write to it.
func (k *kernel) call(request uintptr, arg unsafe.Pointer, keep ...any) (uintptr, error) {
	type answer struct {
		status uintptr
		errno  unix.Errno
	}
	done := make(chan answer, 1)
	go func() {
		status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(k.fd), request, uintptr(arg))
		runtime.KeepAlive(keep)
		done <- answer{status, errno}
	}()
	limit := time.NewTimer(AnswerWithin)
	defer limit.Stop()
	select {
	case a := <-done:
		return a.status, k.errno(request, a.errno)
	case <-limit.C:
		return 0, fmt.Errorf("%w within %s", ErrUnanswered, AnswerWithin)
	}
}

func (k *kernel) errno(request uintptr, errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EBADE:
		return fmt.Errorf("%w (%w)", ErrConflict, errno)
	case unix.EPERM, unix.EACCES:
		return k.permission(request, errno)
	case unix.ENOTTY, unix.EOPNOTSUPP, unix.ENOSYS:
		return fmt.Errorf("%w (%w)", ErrUnsupported, errno)
	}
	return errno
}
