package device

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// mbr is a boot sector with one partition.
func mbr(kind byte, firstSector, sectors uint32) []byte {
	b := make([]byte, 512)
	entry := b[446:]
	entry[4] = kind
	binary.LittleEndian.PutUint32(entry[8:], firstSector)
	binary.LittleEndian.PutUint32(entry[12:], sectors)
	b[510], b[511] = 0x55, 0xaa
	return b
}

func TestSignatureOfKnownFormats(t *testing.T) {
	const size = 4 << 20
	type put struct {
		offset int
		bytes  string
	}
	ext := func(compat, incompat, roCompat uint32) []put {
		var features [12]byte
		binary.LittleEndian.PutUint32(features[0:], compat)
		binary.LittleEndian.PutUint32(features[4:], incompat)
		binary.LittleEndian.PutUint32(features[8:], roCompat)
		return []put{{1024 + 0x38, "\x53\xef"}, {1024 + 0x5c, string(features[:])}}
	}
	tests := []struct {
		name string
		want string
		puts []put
	}{
		{"blank", "", nil},
		{"text at the beginning", SignatureUnknown, []put{{0, "hello"}}},
		{"one byte in the last block", SignatureUnknown, []put{{size - 1, "\x01"}}},
		{"one byte at the edge of what is read", SignatureUnknown, []put{{SignatureBytes - 1, "\x01"}}},
		{"ext2", "ext2 filesystem", ext(0, 0x2, 0x1)},
		{"ext3", "ext3 filesystem", ext(0x4, 0x2, 0x1)},
		{"ext4", "ext4 filesystem", ext(0x4, 0x42, 0x1)},
		{"ext4 journal", "ext4 external journal", ext(0, 0x8, 0)},
		{"ext4 with a large block count", "ext4 filesystem", append(ext(0x4, 0x42, 0x1), put{1024 + 4, "\x00\x00\x34\x34"})},
		{"nilfs2", "nilfs2 filesystem", []put{{1030, "\x34\x34"}}},
		{"xfs", "xfs filesystem", []put{{0, "XFSB"}}},
		{"btrfs", "btrfs filesystem", []put{{0x10040, "_BHRfS_M"}}},
		{"f2fs", "f2fs filesystem", []put{{1024, "\x10\x20\xf5\xf2"}}},
		{"luks", "LUKS encrypted volume", []put{{0, "LUKS\xba\xbe\x00\x02"}}},
		{"luks2, first header wiped", "LUKS encrypted volume", []put{{16384, "SKUL\xba\xbe"}}},
		{"lvm in sector 1", "LVM physical volume", []put{{512, "LABELONE"}, {512 + 24, "LVM2 001"}}},
		{"lvm in sector 0", "LVM physical volume", []put{{0, "LABELONE"}, {24, "LVM2 001"}}},
		{"md 1.1", "md RAID member", []put{{0, "\xfc\x4e\x2b\xa9"}}},
		{"md 1.2", "md RAID member", []put{{4096, "\xfc\x4e\x2b\xa9"}}},
		{"md 1.0", "md RAID member", []put{{size - 8192, "\xfc\x4e\x2b\xa9"}}},
		{"md 0.90", "md RAID member", []put{{size - 65536, "\xfc\x4e\x2b\xa9"}}},
		{"swap, 4 KiB page", "swap area", []put{{4096 - 10, "SWAPSPACE2"}}},
		{"swap, 64 KiB page", "swap area", []put{{65536 - 10, "SWAPSPACE2"}}},
		{"hibernated", "suspend image", []put{{4096 - 10, "S1SUSPEND"}}},
		{"zfs at the beginning", "zfs pool member", []put{{128<<10 + 3<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"}}},
		{"zfs at the end, big-endian", "zfs pool member", []put{{size - 128<<10, "\x00\x00\x00\x00\x00\xba\xb1\x0c"}}},
		{"gpt", "GPT partition table", []put{{0, string(mbr(0xee, 1, 8191))}, {512, "EFI PART"}}},
		{"gpt of a 4Kn disk", "GPT partition table", []put{{4096, "EFI PART"}}},
		{"gpt, only the copy at the end", "GPT partition table", []put{{size - 512, "EFI PART"}}},
		{"mbr", "MBR partition table", []put{{0, string(mbr(0x83, 2048, 2048))}}},
		{"boot sector without partitions", "boot sector", []put{{510, "\x55\xaa"}}},
		{"boot sector with code", "boot sector", []put{{446, "\x12"}, {510, "\x55\xaa"}}},
		{"fat32", "vfat filesystem", []put{{82, "FAT32   "}, {510, "\x55\xaa"}}},
		{"ntfs", "ntfs filesystem", []put{{3, "NTFS    "}, {510, "\x55\xaa"}}},
		{"bitlocker", "BitLocker encrypted volume", []put{{3, "-FVE-FS-"}, {510, "\x55\xaa"}}},
		{"bcache", "bcache device", []put{{4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"}}},
		{"ceph", "Ceph BlueStore", []put{{0, "bluestore block device\n"}}},
		{"oracle", "Oracle ASM disk", []put{{32, "ORCLDISK"}}},
		{"iso", "iso9660 filesystem", []put{{32769, "CD001"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk := make([]byte, size)
			for _, p := range tt.puts {
				copy(disk[p.offset:], p.bytes)
			}
			if got := SignatureOf(disk[:SignatureBytes], disk[size-SignatureBytes:], size); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSignatureOfADeviceSmallerThanWhatIsRead(t *testing.T) {
	for _, size := range []int{4096, 8192, 64 << 10} {
		disk := make([]byte, size)
		if got := SignatureOf(disk, disk, int64(size)); got != "" {
			t.Errorf("blank device of %d bytes: %q", size, got)
		}
		copy(disk[1024+0x38:], "\x53\xef")
		if got := SignatureOf(disk, disk, int64(size)); got != "ext2 filesystem" {
			t.Errorf("device of %d bytes: %q", size, got)
		}
	}
}

// What the real tools write, where they are installed.
func TestSignatureOfRealTools(t *testing.T) {
	tests := []struct {
		tool      string
		args      []string
		sizeBytes int64 // xfs and btrfs want a few hundred megabytes
		want      string
	}{
		{"mkfs.ext2", []string{"-q", "-F"}, 32 << 20, "ext2 filesystem"},
		{"mkfs.ext3", []string{"-q", "-F"}, 32 << 20, "ext3 filesystem"},
		{"mkfs.ext4", []string{"-q", "-F"}, 32 << 20, "ext4 filesystem"},
		{"mkfs.xfs", []string{"-q", "-f"}, 512 << 20, "xfs filesystem"},
		{"mkfs.btrfs", []string{"-q", "-f"}, 512 << 20, "btrfs filesystem"},
		{"mkfs.vfat", nil, 32 << 20, "vfat filesystem"},
		{"mkswap", nil, 32 << 20, "swap area"},
	}
	for _, tt := range tests {
		t.Run(tt.tool, func(t *testing.T) {
			if _, err := exec.LookPath(tt.tool); err != nil {
				t.Skipf("skipped: %s is not installed", tt.tool)
			}
			path := filepath.Join(t.TempDir(), "disk")
			if err := CreateFile(path, tt.sizeBytes); err != nil {
				t.Fatal(err)
			}
			if got, err := Signature(path); err != nil || got != "" {
				t.Fatalf("blank: %q, %v", got, err)
			}
			command(t, tt.tool, append(tt.args, path)...)
			if got, err := Signature(path); err != nil || got != tt.want {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
		})
	}
	_, err := Signature(filepath.Join(t.TempDir(), "missing"))
	wantError(t, err, os.ErrNotExist)
}

func FuzzSignatureOf(f *testing.F) {
	f.Add(make([]byte, 4096), make([]byte, 4096), int64(8192))
	f.Add(mbr(0x83, 2048, 2048), mbr(0xee, 1, 1), int64(512))
	f.Add([]byte("LUKS\xba\xbe"), []byte{}, int64(-1))
	f.Fuzz(func(t *testing.T, first, last []byte, sizeBytes int64) {
		blank := isZero(first) && isZero(last)
		if name := SignatureOf(first, last, sizeBytes); (name == "") != blank {
			t.Errorf("signature %q of a device that is blank: %v", name, blank)
		}
	})
}
