package device

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// SignatureBytes is how much of the beginning and of the end of a device decides
// its signature: enough for the labels of ZFS, the largest of the known ones.
const SignatureBytes = 256 << 10

// SignatureUnknown is the signature of a device that is not blank at its
// beginning and end and holds nothing that is recognised.
const SignatureUnknown = "unrecognised data"

// Signature tells what already lives on the device or file at path: "ext4
// filesystem", "GPT partition table", "LVM physical volume", …;
// SignatureUnknown; "" when its first and last SignatureBytes are all zero. It
// reads only, and works on a device that others use. A log of ours is
// SignatureUnknown or what its records happen to look like: ask its superblocks
// first.
func Signature(path string) (string, error) {
	d, err := Open(path, OpenOptions{ReadOnly: true})
	if err != nil {
		return "", err
	}
	defer func() { _ = d.Close() }()
	return SignatureOn(d)
}

// SignatureOn is Signature of an open device.
func SignatureOn(d Device) (string, error) {
	n := int(min(SignatureBytes, d.SizeBytes()))
	arena, err := NewArena(2 * n)
	if err != nil {
		return "", fmt.Errorf("signature of %s: %w", d.Path(), err)
	}
	defer func() { _ = arena.Free() }()
	first, last := arena.Bytes()[:n], arena.Bytes()[n:]
	if _, err := d.ReadAt(first, 0); err != nil {
		return "", fmt.Errorf("signature: %w", err)
	}
	if _, err := d.ReadAt(last, d.SizeBytes()-int64(n)); err != nil {
		return "", fmt.Errorf("signature: %w", err)
	}
	return SignatureOf(first, last, d.SizeBytes()), nil
}

// SignatureOf is Signature over the first and the last SignatureBytes of a
// device of sizeBytes; on a smaller device both are all of it. It takes any bytes.
func SignatureOf(first, last []byte, sizeBytes int64) string {
	for _, m := range magics {
		if at(first, m.offset, m.magic) {
			return m.name
		}
	}
	for _, look := range []func(first, last []byte, sizeBytes int64) string{
		lvmSignature, mdSignature, extSignature, nilfsSignature, swapSignature, zfsSignature, partitionSignature,
	} {
		if name := look(first, last, sizeBytes); name != "" {
			return name
		}
	}
	if isZero(first) && isZero(last) {
		return ""
	}
	return SignatureUnknown
}

// magics are the formats that fixed bytes at a fixed offset from the beginning
// give away. Offsets and bytes are those of util-linux's libblkid/src/superblocks.
// Containers come before filesystems, and what looks like a boot sector before
// the partition table.
var magics = []struct {
	name   string
	offset int
	magic  string
}{
	{"LUKS encrypted volume", 0, "LUKS\xba\xbe"},
	{"LUKS encrypted volume", 16384, "SKUL\xba\xbe"}, // second header: the first was wiped
	{"LUKS encrypted volume", 32768, "SKUL\xba\xbe"},
	{"BitLocker encrypted volume", 3, "-FVE-FS-"},
	{"dm-verity hash tree", 0, "verity\x00\x00"},
	{"dm-integrity volume", 0, "integrt\x00"},
	{"bcache device", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"bcachefs filesystem", 4096 + 24, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
	{"Ceph BlueStore", 0, "bluestore block device"},
	{"Oracle ASM disk", 32, "ORCLDISK"},
	{"xfs filesystem", 0, "XFSB"},
	{"xfs external log", 0, "\xfe\xed\xba\xbe"},
	{"btrfs filesystem", 65536 + 64, "_BHRfS_M"},
	{"f2fs filesystem", 1024, "\x10\x20\xf5\xf2"},
	{"erofs filesystem", 1024, "\xe2\xe1\xf5\xe0"},
	{"squashfs filesystem", 0, "hsqs"},
	{"hfsplus filesystem", 1024, "H+\x00\x04"},
	{"apfs filesystem", 32, "NXSB"},
	{"gfs2 filesystem", 65536, "\x01\x16\x19\x70"},
	{"ocfs2 filesystem", 8192, "OCFSV2"},
	{"jfs filesystem", 32768, "JFS1"},
	{"reiserfs filesystem", 65536 + 52, "ReIsEr"},
	{"iso9660 filesystem", 32768 + 1, "CD001"},
	{"udf filesystem", 32768 + 1, "BEA01"},
	{"exfat filesystem", 3, "EXFAT   "},
	{"ntfs filesystem", 3, "NTFS    "},
	{"vfat filesystem", 54, "FAT12   "},
	{"vfat filesystem", 54, "FAT16   "},
	{"vfat filesystem", 82, "FAT32   "},
	{"suspend image", 4096 - 10, "S1SUSPEND"},
	{"suspend image", 4096 - 10, "S2SUSPEND"},
}

// lvmSignature: the label may be in any of the first four sectors.
func lvmSignature(first, _ []byte, _ int64) string {
	for sector := range 4 {
		if at(first, sector*512, "LABELONE") && at(first, sector*512+24, "LVM2 001") {
			return "LVM physical volume"
		}
	}
	return ""
}

// mdSignature: version 1.1 is at the beginning, 1.2 at 4 KiB, 0.90 and 1.0 are at
// the end (drivers/md/md.c: calc_dev_sboffset and super_1_load).
func mdSignature(first, last []byte, sizeBytes int64) string {
	const magic = "\xfc\x4e\x2b\xa9"
	sectors := sizeBytes / 512
	fromEnd := func(offset int64) int { return int(offset - (sizeBytes - int64(len(last)))) }
	if at(first, 0, magic) || at(first, 4096, magic) ||
		at(last, fromEnd((sectors-16)&^7*512), magic) ||
		at(last, fromEnd((sectors&^127-128)*512), magic) {
		return "md RAID member"
	}
	return ""
}

// extSignature tells the generations apart by the features that each added.
func extSignature(first, _ []byte, _ int64) string {
	const super = 1024
	if !at(first, super+0x38, "\x53\xef") || len(first) < super+0x68 {
		return ""
	}
	compat := binary.LittleEndian.Uint32(first[super+0x5c:])
	incompat := binary.LittleEndian.Uint32(first[super+0x60:])
	roCompat := binary.LittleEndian.Uint32(first[super+0x64:])
	const (
		hasJournal   = 0x4
		ext3Incompat = 0x2 | 0x4 | 0x10 // filetype, recover, meta_bg
		ext3RoCompat = 0x1 | 0x2 | 0x4  // sparse_super, large_file, btree_dir
		journalDev   = 0x8
	)
	switch {
	case incompat&journalDev != 0:
		return "ext4 external journal"
	case incompat&^ext3Incompat != 0 || roCompat&^ext3RoCompat != 0:
		return "ext4 filesystem"
	case compat&hasJournal != 0:
		return "ext3 filesystem"
	}
	return "ext2 filesystem"
}

// nilfsSignature comes after ext: its magic is two bytes of ext's block count.
func nilfsSignature(first, last []byte, _ int64) string {
	if at(first, 1024+6, "\x34\x34") || at(last, len(last)-4096+6, "\x34\x34") {
		return "nilfs2 filesystem"
	}
	return ""
}

// swapSignature: the magic ends the first page, whatever the machine's page.
func swapSignature(first, _ []byte, _ int64) string {
	for _, page := range []int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		if at(first, page-10, "SWAPSPACE2") || at(first, page-10, "SWAP-SPACE") {
			return "swap area"
		}
	}
	return ""
}

// zfsSignature: two labels of 256 KiB at each end, each with a ring of uberblocks
// in its second half.
func zfsSignature(first, last []byte, _ int64) string {
	const label, ring, step = 256 << 10, 128 << 10, 1 << 10
	for _, region := range [][]byte{first, last} {
		if len(region) != label {
			continue
		}
		for o := ring; o < label; o += step {
			if at(region, o, "\x0c\xb1\xba\x00\x00\x00\x00\x00") || at(region, o, "\x00\x00\x00\x00\x00\xba\xb1\x0c") {
				return "zfs pool member"
			}
		}
	}
	return ""
}

// partitionSignature: GPT has its header in logical block 1 and a copy in the
// last; an MBR ends its sector with 55 aa and has four entries before that.
func partitionSignature(first, last []byte, _ int64) string {
	for _, logical := range []int{512, 4096} {
		if at(first, logical, "EFI PART") || at(last, len(last)-logical, "EFI PART") {
			return "GPT partition table"
		}
	}
	if !at(first, 510, "\x55\xaa") {
		return ""
	}
	used := false
	for i := range 4 {
		entry := first[446+16*i:][:16]
		if entry[0] != 0 && entry[0] != 0x80 {
			return "boot sector"
		}
		used = used || entry[4] != 0
	}
	if used {
		return "MBR partition table"
	}
	return "boot sector"
}

// at reports whether b holds magic at offset; false where that is outside b.
func at(b []byte, offset int, magic string) bool {
	return offset >= 0 && offset+len(magic) <= len(b) && string(b[offset:offset+len(magic)]) == magic
}

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

var zeros [4096]byte
