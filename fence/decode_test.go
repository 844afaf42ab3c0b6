package fence

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// unhex reads hex digits with spaces between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Built by hand after the NVM Express base specification: generation 5, Write Exclusive,
// two registrants, persisting; the second holds.
func nvmeReports(t testing.TB) (plain, extended []byte) {
	head := "05000000 01 0200 0000 01 0000 0000000000000000 00000000"
	plain = unhex(t, head+
		"0100 00 0000000000 1111111111111111 a100000000000000"+
		"0200 01 0000000000 2222222222222222 b200000000000080")
	extended = append(unhex(t, head), make([]byte, 40)...)
	extended = append(extended, unhex(t, "ffff 00 0000000000 a100000000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")...)
	extended = append(extended, make([]byte, 32)...)
	extended = append(extended, unhex(t, "ffff 01 0000000000 b200000000000080 bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")...)
	return plain, append(extended, make([]byte, 32)...)
}

func TestDecodeNVMeReport(t *testing.T) {
	plain, extended := nvmeReports(t)
	want := Status{Generation: 5, Keys: []Key{0xa1, 0x80000000000000b2}, Holder: 0x80000000000000b2, Type: WriteExclusive, Persists: Yes}
	for eds, b := range map[bool][]byte{false: plain, true: extended} {
		if got, more, err := decodeNVMeReport(b, eds); err != nil || more != 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("extended %v: %+v, %d, %v", eds, got, more, err)
		}
		if _, more, err := decodeNVMeReport(b[:len(b)-1], eds); err != nil || more != len(b) {
			t.Errorf("extended %v, cut: whole length %d, want %d; %v", eds, more, len(b), err)
		}
	}
	// With all registrants for holders there is no one key of the holder.
	extended[4] = byte(WriteExclusiveAllRegistrants)
	if got, _, err := decodeNVMeReport(extended, true); err != nil || got.Holder != 0 || got.Type != WriteExclusiveAllRegistrants {
		t.Errorf("all registrants: %+v, %v", got, err)
	}
	for name, b := range map[string][]byte{"short": plain[:23], "type 7": append(unhex(t, "00000000 07"), make([]byte, 19)...),
		"too many": append(unhex(t, "00000000 01 ffff"), make([]byte, 17)...)} {
		if _, _, err := decodeNVMeReport(b, false); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeNVMeIdentify(t *testing.T) {
	identify := func(oncs uint16, nmic, rescap byte) Capabilities {
		controller, namespace := make([]byte, 4096), make([]byte, 4096)
		binary.LittleEndian.PutUint16(controller[520:], oncs)
		namespace[30], namespace[31] = nmic, rescap
		c, err := decodeNVMeIdentify(controller, namespace)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if got, want := identify(0x20, 1, 0xff), (Capabilities{Transport: NVMe, Reservations: Yes, WriteExclusive: Yes, PersistsThroughPower: Yes,
		SharedAttachment: Yes, RawReservationOptions: 0xff}); got != want {
		t.Errorf("all of it: %+v", got)
	}
	if got := identify(0x20, 1, 0xfe); got.PersistsThroughPower != No || got.Reservations != Yes {
		t.Errorf("Linux's own target: %+v", got)
	}
	if got := identify(0x5f, 0, 0); got.Reservations != No || got.SharedAttachment != No {
		t.Errorf("a disk without: %+v", got)
	}
	if got := identify(0, 0, 0xff); got.Reservations != No {
		t.Errorf("a controller without the commands: %+v", got)
	}
	if got := identify(0x20, 0, 0x81); got.Reservations != No {
		t.Errorf("no type at all: %+v", got)
	}
}

func TestDecodeSCSI(t *testing.T) {
	keys := unhex(t, "00000007 00000010 00000000000000a1 80000000000000b2")
	if st, more, err := decodeSCSIKeys(keys); err != nil || more != 0 || st.Generation != 7 || !reflect.DeepEqual(st.Keys, []Key{0xa1, 0x80000000000000b2}) {
		t.Errorf("keys: %+v, %d, %v", st, more, err)
	}
	if _, more, err := decodeSCSIKeys(keys[:16]); err != nil || more != 24 {
		t.Errorf("cut keys: %d, %v", more, err)
	}
	held := unhex(t, "00000007 00000010 80000000000000b2 00000000 00 05 0000")
	for code, kind := range map[byte]Type{1: WriteExclusive, 3: ExclusiveAccess, 5: WriteExclusiveRegistrantsOnly, 6: ExclusiveAccessRegistrantsOnly,
		7: WriteExclusiveAllRegistrants, 8: ExclusiveAccessAllRegistrants} {
		held[21] = code
		if key, got, err := decodeSCSIReservation(held); err != nil || key != 0x80000000000000b2 || got != kind {
			t.Errorf("type %d: %s %s %v", code, key, got, err)
		}
	}
	if key, kind, err := decodeSCSIReservation(unhex(t, "00000007 00000000")); err != nil || key != 0 || kind != NoReservation {
		t.Errorf("nothing held: %s %s %v", key, kind, err)
	}
	held[21] = 4
	for name, b := range map[string][]byte{"type 4": held, "cut": held[:20], "short": held[:7]} {
		if _, _, err := decodeSCSIReservation(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{"odd length": unhex(t, "00000007 00000009"), "too many": unhex(t, "00000007 fffffff8"), "short": keys[:7]} {
		if _, _, err := decodeSCSIKeys(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// PTPL_C, types valid, PTPL_A; all types.
	c, active, err := decodeSCSICapabilities(unhex(t, "0008 01 81 ea01 0000"))
	if err != nil || !active || c.PersistsThroughPower != Yes || c.WriteExclusive != Yes || c.Reservations != Yes {
		t.Errorf("capabilities: %+v, %v, %v", c, active, err)
	}
	c, active, err = decodeSCSICapabilities(unhex(t, "0008 00 80 0800 0000"))
	if err != nil || active || c.PersistsThroughPower != No || c.WriteExclusive != No {
		t.Errorf("only exclusive access, volatile: %+v, %v, %v", c, active, err)
	}
}

func TestSenseKey(t *testing.T) {
	for text, want := range map[string]byte{"70 00 06 00": 6, "f0 00 05": 5, "72 06 29 00": 6, "73 05": 5, "70 00": 0, "": 0, "00 06 06": 0} {
		if got := senseKey(unhex(t, text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func FuzzDecodeNVMeReport(f *testing.F) {
	plain, extended := nvmeReports(f)
	f.Add(plain, false)
	f.Add(extended, true)
	f.Fuzz(func(t *testing.T, b []byte, eds bool) {
		st, more, err := decodeNVMeReport(b, eds)
		checkStatus(t, st, more, len(b), err)
	})
}

func FuzzDecodeSCSI(f *testing.F) {
	f.Add(unhex(f, "00000007 00000010 00000000000000a1 80000000000000b2"))
	f.Add(unhex(f, "00000007 00000010 80000000000000b2 00000000 00 05 0000"))
	f.Add(unhex(f, "0008 01 81 ea01 0000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, more, err := decodeSCSIKeys(b)
		checkStatus(t, st, more, len(b), err)
		if holder, kind, err := decodeSCSIReservation(b); err != nil && (holder != 0 || kind != NoReservation) || kind > ExclusiveAccessAllRegistrants {
			t.Errorf("%s %s %v", holder, kind, err)
		}
		if c, _, err := decodeSCSICapabilities(b); err == nil && c.Reservations != Yes {
			t.Errorf("%+v", c)
		}
		if key := senseKey(b); key > 0xf {
			t.Errorf("sense key %d", key)
		}
	})
}

// checkStatus checks what holds for every report: bounded, and either whole or not given.
func checkStatus(t *testing.T, st Status, more, have int, err error) {
	t.Helper()
	switch {
	case err != nil && !errors.Is(err, ErrMalformed):
		t.Errorf("error %v", err)
	case (err != nil || more != 0) && len(st.Keys) > 0:
		t.Errorf("%d keys beside %v, %d", len(st.Keys), err, more)
	case more != 0 && more <= have:
		t.Errorf("%d bytes wanted, %d there", more, have)
	case len(st.Keys) > maxRegistrants || more > nvmeReportHeadEDS+nvmeEntryEDS*maxRegistrants:
		t.Errorf("%d keys, %d bytes wanted", len(st.Keys), more)
	case st.Holder != 0 && !st.Has(st.Holder):
		t.Errorf("holder %s is not registered", st.Holder)
	}
}
