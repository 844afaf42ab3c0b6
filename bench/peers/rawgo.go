package peers

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/walsidecar/walsidecar/bench/drive"
)

// rawGo is the ideal of the simple way: a group commit in the load's process, straight to
// the device with direct I/O, one write in flight, pwrite and fdatasync (one flush; a
// data-sync pwrite takes two on a device without FUA), each batch padded to 4 KiB, over
// and over the same area. It keeps no index and cannot be read back.
type rawGo struct {
	file   *os.File
	at     int64
	bytes  int64
	buffer []byte
}

const (
	rawArea   = 1 << 30
	rawBlock  = 4096
	rawBuffer = 32 << 20 // larger than any batch: 1,024 records of 16 KiB
)

func (r *rawGo) Open(_ context.Context, s drive.Setup) (err error) {
	r.bytes = min(rawArea, s.StoreBytes)
	path := s.Device
	if path == "" {
		path = filepath.Join(s.Dir, "raw")
		if err = writeFile(path, r.bytes); err != nil {
			return err
		}
	}
	if r.file, err = os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0); err != nil {
		return err
	}
	r.buffer, err = unix.Mmap(-1, 0, rawBuffer, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	return err
}

// writeFile makes a file whose blocks are all written.
func writeFile(path string, bytes int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for at, chunk := int64(0), make([]byte, 1<<20); at < bytes; at += int64(len(chunk)) {
		if _, err := f.WriteAt(chunk, at); err != nil {
			return err
		}
	}
	return f.Sync()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r *rawGo) AppendBatch(records [][]byte) error {
	b := r.buffer[:0]
	for _, record := range records {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(record)))
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(record, castagnoli))
		b = append(b, record...)
	}
	b = b[:(len(b)+rawBlock-1)/rawBlock*rawBlock]
	if r.at+int64(len(b)) > r.bytes {
		r.at = 0
	}
	if _, err := r.file.WriteAt(b, r.at); err != nil {
		return err
	}
	r.at += int64(len(b))
	return unix.Fdatasync(int(r.file.Fd()))
}

func (r *rawGo) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
