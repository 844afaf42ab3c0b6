// Package fence makes an earlier owner of a device unable to write, and says what must
// be waited for before its late writes can be ruled out.
//
// There are three modes. PR: a block device with persistent reservations (NVMe, SCSI);
// this attachment holds Write Exclusive, and nobody else's write gets through. Attach: a
// block device without; exclusivity rests on the volume being attached once. Lock: a
// file; device.Open holds an exclusive lock. The last two have no calls of their own, but
// the same routine.
//
// Plan is the routine's logic, without clock or I/O; Acquire carries it out; Watch finds
// out that a fence was lost.
package fence

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Key is a reservation key: the node's hash in the upper 32 bits, bits of the incarnation
// in the lower. Two starts never have equal keys. 0 is no key.
type Key uint64

// KeyOf is the key of one start of a log: node is the node name in its superblock,
// incarnation the random 128 bits that the start has drawn.
func KeyOf(node string, incarnation [16]byte) Key {
	bits := binary.BigEndian.Uint32(incarnation[:4])
	if bits == 0 {
		bits = 1 // so that no key is 0, whatever the node's hash
	}
	return Key(uint64(NodeHash(node))<<32 | uint64(bits))
}

// NodeHash is the upper half of every key of a node's logs.
func NodeHash(node string) uint32 { return uint32(xxhash.Sum64String(node)) }

// Node is the hash of the node that the key is of.
func (k Key) Node() uint32 { return uint32(k >> 32) }

// String is 0x and 16 hex digits, and "none" for 0.
func (k Key) String() string {
	if k == 0 {
		return "none"
	}
	return fmt.Sprintf("0x%016x", uint64(k))
}

// MarshalText is String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is ParseKey.
func (k *Key) UnmarshalText(b []byte) (err error) {
	*k, err = ParseKey(string(b))
	return err
}

// ParseKey reads what String gives: hex digits with 0x, or "none".
func ParseKey(s string) (Key, error) {
	if s == "none" {
		return 0, nil
	}
	digits, found := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 64)
	if !found || err != nil {
		return 0, fmt.Errorf("%q is no reservation key: 0x and up to 16 hex digits, or none", s)
	}
	return Key(n), nil
}

// Type is the type of a reservation, as IOC_PR_* numbers them.
type Type uint8

// The types that a device can report. This package makes WriteExclusive and nothing
// else: with the registrants types, a fenced host gets back in just by registering.
const (
	NoReservation                  Type = 0
	WriteExclusive                 Type = 1
	ExclusiveAccess                Type = 2
	WriteExclusiveRegistrantsOnly  Type = 3
	ExclusiveAccessRegistrantsOnly Type = 4
	WriteExclusiveAllRegistrants   Type = 5
	ExclusiveAccessAllRegistrants  Type = 6
)

var typeNames = map[Type]string{
	NoReservation: "none", WriteExclusive: "write exclusive", ExclusiveAccess: "exclusive access",
	WriteExclusiveRegistrantsOnly: "write exclusive, registrants only", ExclusiveAccessRegistrantsOnly: "exclusive access, registrants only",
	WriteExclusiveAllRegistrants: "write exclusive, all registrants", ExclusiveAccessAllRegistrants: "exclusive access, all registrants",
}

// String is the type in words.
func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return fmt.Sprintf("unknown type %d", uint8(t))
}

// MarshalText is String.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Status is what a device says about its reservation.
type Status struct {
	Generation uint32 // moves on with every registration, replacement, preempt and clear
	Keys       []Key  // of the registrants, in the device's order; an NVMe one may be 0
	Holder     Key    // of the reservation; 0: nobody
	Type       Type   // of the reservation; NoReservation: none is held
	Persists   Tri    // through power loss, where the device tells; NVMe: once somebody registered
}

// Has reports whether a registrant has key k.
func (s Status) Has(k Key) bool {
	for _, x := range s.Keys {
		if x == k {
			return true
		}
	}
	return false
}

// Tri is an answer that a device or a lack of permission may keep from us.
type Tri uint8

// The answers.
const (
	Unknown Tri = iota
	No
	Yes
)

// String is "unknown", "no" or "yes".
func (t Tri) String() string { return [...]string{"unknown", "no", "yes"}[min(t, 2)] }

// MarshalText is String.
func (t Tri) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func triOf(yes bool) Tri {
	if yes {
		return Yes
	}
	return No
}

// Transport is how reservations are spoken to a device.
type Transport string

// The transports; NoTransport has no reservations.
const (
	NVMe        Transport = "nvme"
	SCSI        Transport = "scsi"
	NoTransport Transport = "none"
)

// Capabilities is what a device can do, as far as it could be asked.
type Capabilities struct {
	Transport             Transport `json:"transport"`
	Reservations          Tri       `json:"reservations"`            // persistent ones, at all
	WriteExclusive        Tri       `json:"write_exclusive"`         // the type that we need
	PersistsThroughPower  Tri       `json:"persists_through_power"`  // a target reset does not forget them
	SharedAttachment      Tri       `json:"shared_attachment"`       // the volume can be attached to several hosts (NVMe: NMIC)
	ReadByKernel          Tri       `json:"read_by_kernel"`          // the kernel has IOC_PR_READ_KEYS and IOC_PR_READ_RESERVATION
	Missing               string    `json:"missing,omitempty"`       // why something is unknown, and what to do
	RawReservationOptions uint32    `json:"raw_reservation_options"` // NVMe: RESCAP; SCSI: bytes 2..5 of REPORT CAPABILITIES
}

// Mode is what keeps an earlier owner from writing.
type Mode string

// The modes.
const (
	ModePR     Mode = "pr"
	ModeAttach Mode = "attach"
	ModeLock   Mode = "lock"
)
