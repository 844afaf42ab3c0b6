package device

import "errors"

// CreateFile makes a new file of sizeBytes zeros at path, mode 0600: space
// allocated, every byte written with direct I/O, file and directory synced, so
// that a later write finds no full filesystem and converts no extent. sizeBytes
// is a positive multiple of MinBlockBytes. An existing file is left alone
// (fs.ErrExist); on any failure nothing stays behind. Errors: ErrNoSpace,
// ErrNoDirectIO, ErrSparse, or the operating system's own.
func CreateFile(path string, sizeBytes int64) error { return errors.New("skeleton") }
