package fence

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nvmeCommand is struct nvme_passthru_cmd.
type nvmeCommand struct {
	opcode, flags                                           uint8
	_                                                       uint16
	namespace, cdw2, cdw3                                   uint32
	metadata, address                                       uint64
	metadataBytes, bytes                                    uint32
	cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, timeoutMS, dw uint32
}

const (
	nvmeReservationRegister = 0x0d
	nvmeReservationReport   = 0x0e
	nvmeIdentify            = 0x06
	nvmeIdentifyBytes       = 4096
)

// nvme sends one command with a buffer; status is the NVMe status where that is not 0.
func (k *kernel) nvme(request uintptr, c nvmeCommand, b []byte) (status uintptr, err error) {
	c.namespace, c.address, c.bytes = k.namespace, uint64(uintptr(unsafe.Pointer(&b[0]))), uint32(len(b))
	if c.opcode == nvmeIdentify && c.cdw10 == 1 { // of the controller
		c.namespace = 0
	}
	status, err = k.call(request, unsafe.Pointer(&c), b)
	return status & nvmeStatusMask, err
}

// nvmeReport reads the Reservation Report: with extended data structure, as hosts with a
// 128-bit identifier must, else without.
func (k *kernel) nvmeReport() (Status, error) {
	b := make([]byte, 4096)
	for extended := true; ; {
		eds := uint32(0)
		if extended {
			eds = 1
		}
		status, err := k.nvme(iocNVMeIO, nvmeCommand{opcode: nvmeReservationReport, cdw10: uint32(len(b)/4 - 1), cdw11: eds}, b)
		switch {
		case err != nil:
			return Status{}, err
		case extended && (status == nvmeHostIDMismatch || status == nvmeBadField):
			extended = false
			continue
		case status != 0:
			return Status{}, fmt.Errorf("the device answered the Reservation Report with NVMe status %#x", status)
		}
		st, more, err := decodeNVMeReport(b, extended)
		if more == 0 {
			return st, err
		}
		b = make([]byte, (more+4095)/4096*4096)
	}
}

// nvmeUnregister is Reservation Register with action "unregister", which no ioctl sends.
func (k *kernel) nvmeUnregister(own Key) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(own))
	b = binary.LittleEndian.AppendUint64(b, 0)
	status, err := k.nvme(iocNVMeIO, nvmeCommand{opcode: nvmeReservationRegister, cdw10: 1}, b)
	switch {
	case err != nil:
		return err
	case status == nvmeConflict:
		return ErrConflict
	case status != 0:
		return fmt.Errorf("%s: the device answered NVMe status %#x", k.path, status)
	}
	return nil
}

// nvmeCapabilities asks controller and namespace.
func (k *kernel) nvmeCapabilities() (Capabilities, error) {
	controller, namespace := make([]byte, nvmeIdentifyBytes), make([]byte, nvmeIdentifyBytes)
	for cns, b := range [][]byte{namespace, controller} {
		status, err := k.nvme(iocNVMeAdmin, nvmeCommand{opcode: nvmeIdentify, cdw10: uint32(cns)}, b)
		if err == nil && status != 0 {
			err = fmt.Errorf("the device answered Identify with NVMe status %#x", status)
		}
		if err != nil {
			return Capabilities{Transport: NVMe}, err
		}
	}
	return decodeNVMeIdentify(controller, namespace)
}

// sgHeader is struct sg_io_hdr.
type sgHeader struct {
	interfaceID, direction   int32
	commandBytes, senseMax   uint8
	_                        uint16
	bytes                    uint32
	data, command, sense     uintptr
	timeoutMS, flags         uint32
	_                        int32
	_                        uintptr
	status, _, _, senseBytes uint8
	hostStatus, driverStatus uint16
	resid                    int32
	_, _                     uint32
}

// SCSI PERSISTENT RESERVE IN and its service actions.
const (
	scsiReserveIn       = 0x5e
	scsiReadKeys        = 0
	scsiReadReservation = 1
	scsiCapabilities    = 2

	scsiCheckCondition = 0x02
	scsiConflict       = 0x18
	scsiUnitAttention  = 6
	scsiIllegalRequest = 5
	scsiTries          = 5 // a unit attention tells of a change, and the command is sent again
)

// scsiIn sends PERSISTENT RESERVE IN and returns what came.
func (k *kernel) scsiIn(action byte, length int) ([]byte, error) {
	for range scsiTries {
		b, sense := make([]byte, length), make([]byte, 64)
		command := make([]byte, 10)
		command[0], command[1] = scsiReserveIn, action
		binary.BigEndian.PutUint16(command[7:], uint16(length))
		h := sgHeader{interfaceID: 'S', direction: -3, commandBytes: 10, senseMax: uint8(len(sense)), bytes: uint32(length),
			data: uintptr(unsafe.Pointer(&b[0])), command: uintptr(unsafe.Pointer(&command[0])), sense: uintptr(unsafe.Pointer(&sense[0])),
			timeoutMS: uint32(AnswerWithin.Milliseconds())}
		_, err := k.call(iocSGIO, unsafe.Pointer(&h), b, command, sense)
		if err != nil {
			return nil, err
		}
		key := senseKey(sense[:min(int(h.senseBytes), len(sense))])
		switch {
		case h.status == scsiConflict:
			return nil, ErrConflict
		case h.status == scsiCheckCondition && key == scsiUnitAttention:
			continue
		case h.status == scsiCheckCondition && key == scsiIllegalRequest:
			return nil, fmt.Errorf("%w: the device does not know PERSISTENT RESERVE IN", ErrUnsupported)
		case h.status != 0 || h.hostStatus != 0:
			return nil, fmt.Errorf("the device answered SCSI status %#x, sense key %d, host status %#x", h.status, key, h.hostStatus)
		}
		return b[:length-min(max(int(h.resid), 0), length)], nil
	}
	return nil, fmt.Errorf("the device reported a change %d times in a row", scsiTries)
}

// senseKey reads fixed and descriptor format; 0 is none.
func senseKey(sense []byte) byte {
	switch {
	case len(sense) > 2 && (sense[0]&0x7f == 0x70 || sense[0]&0x7f == 0x71):
		return sense[2] & 0xf
	case len(sense) > 1 && (sense[0]&0x7f == 0x72 || sense[0]&0x7f == 0x73):
		return sense[1] & 0xf
	}
	return 0
}

func (k *kernel) scsiStatus() (Status, error) {
	st, err := k.scsiKeys()
	if err != nil {
		return st, err
	}
	b, err := k.scsiIn(scsiReadReservation, 24)
	if err != nil {
		return st, err
	}
	if st.Holder, st.Type, err = decodeSCSIReservation(b); err != nil {
		return st, err
	}
	again, err := k.scsiKeys()
	if err == nil && again.Generation != st.Generation || st.Holder != 0 && !st.Has(st.Holder) {
		return st, errChanged
	}
	return st, err
}

func (k *kernel) scsiKeys() (Status, error) {
	for length := 8 + 8*64; ; {
		b, err := k.scsiIn(scsiReadKeys, length)
		if err != nil {
			return Status{}, err
		}
		st, more, err := decodeSCSIKeys(b)
		if more == 0 || err != nil {
			return st, err
		}
		if more <= length {
			return st, fmt.Errorf("%w: %d bytes of %d came", ErrMalformed, len(b), more)
		}
		length = more
	}
}

func (k *kernel) scsiCapabilities() (Capabilities, bool, error) {
	b, err := k.scsiIn(scsiCapabilities, 8)
	if err != nil {
		return Capabilities{Transport: SCSI}, false, err
	}
	return decodeSCSICapabilities(b)
}

// transportOf asks which of the two a descriptor speaks.
func transportOf(fd int) (Transport, uint32) {
	if id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), iocNVMeID, 0); errno == 0 && id > 0 {
		return NVMe, uint32(id)
	}
	var version int32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), iocSGVersion, uintptr(unsafe.Pointer(&version))); errno == 0 && version >= 30000 {
		return SCSI, 0
	}
	return NoTransport, 0
}
