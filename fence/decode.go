package fence

import (
	"encoding/binary"
	"fmt"
)

// maxRegistrants bounds what is believed of a report: far above what any target keeps.
const maxRegistrants = 4096

// Sizes in an NVMe Reservation Report (NVM Express base specification, "Reservation
// Status Data Structure"), without and with extended data structure (EDS).
const (
	nvmeReportHead    = 24
	nvmeReportEntry   = 24
	nvmeReportHeadEDS = 64
	nvmeEntryEDS      = 64
)

// decodeNVMeReport reads a Reservation Report. more is how many bytes the whole report
// has, where b ends before it; the status is then incomplete.
func decodeNVMeReport(b []byte, extended bool) (st Status, more int, err error) {
	head, entry, keyAt := nvmeReportHead, nvmeReportEntry, 16
	if extended {
		head, entry, keyAt = nvmeReportHeadEDS, nvmeEntryEDS, 8
	}
	if len(b) < head {
		return Status{}, 0, fmt.Errorf("%w: %d bytes of an NVMe reservation report", ErrMalformed, len(b))
	}
	st.Generation = binary.LittleEndian.Uint32(b)
	st.Type = Type(b[4])
	st.Persists = triOf(b[9]&1 != 0)
	count := int(binary.LittleEndian.Uint16(b[5:]))
	if count > maxRegistrants {
		return Status{}, 0, fmt.Errorf("%w: an NVMe reservation report of %d registrants", ErrMalformed, count)
	}
	if whole := head + count*entry; whole > len(b) {
		return Status{}, whole, nil
	}
	for i := range count {
		e := b[head+i*entry:]
		key := Key(binary.LittleEndian.Uint64(e[keyAt:]))
		st.Keys = append(st.Keys, key)
		if e[2]&1 != 0 && st.Type != WriteExclusiveAllRegistrants && st.Type != ExclusiveAccessAllRegistrants {
			st.Holder = key
		}
	}
	if st.Type > ExclusiveAccessAllRegistrants {
		return Status{}, 0, fmt.Errorf("%w: NVMe reservation type %d", ErrMalformed, st.Type)
	}
	return st, 0, nil
}

// decodeNVMeIdentify reads the two Identify structures of 4096 bytes: of the controller
// (optional NVM commands) and of the namespace (sharing, reservation capabilities).
func decodeNVMeIdentify(controller, namespace []byte) (Capabilities, error) {
	c := Capabilities{Transport: NVMe}
	if len(controller) < 522 || len(namespace) < 32 {
		return c, fmt.Errorf("%w: %d and %d bytes of NVMe Identify", ErrMalformed, len(controller), len(namespace))
	}
	const oncsReservations = 1 << 5
	oncs, rescap := binary.LittleEndian.Uint16(controller[520:]), namespace[31]
	c.RawReservationOptions = uint32(rescap)
	c.Reservations = triOf(oncs&oncsReservations != 0 && rescap&^0x81 != 0)
	c.PersistsThroughPower = triOf(rescap&1 != 0)
	c.WriteExclusive = triOf(rescap&2 != 0)
	c.SharedAttachment = triOf(namespace[30]&1 != 0)
	return c, nil
}

// decodeSCSIKeys reads what PERSISTENT RESERVE IN, READ KEYS returns (SPC-4, 6.15.2). more
// is how many bytes the whole has, where b ends before it.
func decodeSCSIKeys(b []byte) (st Status, more int, err error) {
	if len(b) < 8 {
		return Status{}, 0, fmt.Errorf("%w: %d bytes of SCSI reservation keys", ErrMalformed, len(b))
	}
	st.Generation = binary.BigEndian.Uint32(b)
	length := binary.BigEndian.Uint32(b[4:])
	if length%8 != 0 || length > 8*maxRegistrants {
		return Status{}, 0, fmt.Errorf("%w: %d bytes of SCSI reservation keys follow", ErrMalformed, length)
	}
	if whole := 8 + int(length); whole > len(b) {
		return Status{}, whole, nil
	}
	for at := 8; at < 8+int(length); at += 8 {
		st.Keys = append(st.Keys, Key(binary.BigEndian.Uint64(b[at:])))
	}
	return st, 0, nil
}

// scsiTypes is how SPC numbers the types.
var scsiTypes = map[byte]Type{1: WriteExclusive, 3: ExclusiveAccess, 5: WriteExclusiveRegistrantsOnly, 6: ExclusiveAccessRegistrantsOnly,
	7: WriteExclusiveAllRegistrants, 8: ExclusiveAccessAllRegistrants}

// decodeSCSIReservation reads what PERSISTENT RESERVE IN, READ RESERVATION returns (SPC-4,
// 6.15.3). The generation in it is not to be trusted: LIO gives 0 where nothing is held.
func decodeSCSIReservation(b []byte) (holder Key, kind Type, err error) {
	if len(b) < 8 {
		return 0, 0, fmt.Errorf("%w: %d bytes of a SCSI reservation", ErrMalformed, len(b))
	}
	switch length := binary.BigEndian.Uint32(b[4:]); {
	case length == 0:
		return 0, NoReservation, nil
	case length < 16 || len(b) < 24:
		return 0, 0, fmt.Errorf("%w: a SCSI reservation of %d bytes, %d read", ErrMalformed, length, len(b))
	}
	kind, known := scsiTypes[b[21]&0xf]
	if !known {
		return 0, 0, fmt.Errorf("%w: SCSI reservation type %d", ErrMalformed, b[21]&0xf)
	}
	return Key(binary.BigEndian.Uint64(b[8:])), kind, nil
}

// decodeSCSICapabilities reads what PERSISTENT RESERVE IN, REPORT CAPABILITIES returns
// (SPC-4, 6.15.4). active is whether reservations persist through power loss now: what the
// last registration asked for.
func decodeSCSICapabilities(b []byte) (c Capabilities, active bool, err error) {
	c = Capabilities{Transport: SCSI}
	if len(b) < 8 || binary.BigEndian.Uint16(b) < 8 {
		return c, false, fmt.Errorf("%w: %d bytes of SCSI reservation capabilities", ErrMalformed, len(b))
	}
	c.RawReservationOptions = binary.BigEndian.Uint32(b[2:])
	c.Reservations = Yes
	c.PersistsThroughPower = triOf(b[2]&1 != 0)
	c.WriteExclusive = Yes
	if typesAreValid := b[3]&0x80 != 0; typesAreValid {
		c.WriteExclusive = triOf(b[4]&2 != 0)
	}
	return c, b[3]&1 != 0, nil
}
