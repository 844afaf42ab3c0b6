package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Store is where systems keep their data: a block device, or a directory.
type Store struct {
	Label  string // of results
	Device string // "": a directory
	Dir    string // a directory, or where the filesystem of Device is mounted
	Bytes  int64
	remove []func() error
}

// What stores can be named, beside a path.
const (
	storeRAM  = "ram"
	storeFile = "file:"
)

// Sizes of the loop devices that are made, and what is used of a directory.
const (
	ramBytes  = 3 << 30
	fileBytes = 4 << 30
	dirBytes  = 512 << 20
)

// OpenStore opens a store by its name: "ram" and "file:DIR" make a loop device over a file
// in memory or in DIR, which Close removes; the path of a block device: what is on it is
// DESTROYED; the path of a directory. A label, "LABEL=" before it, names it in results.
func OpenStore(name string) (s *Store, err error) {
	label, rest, labelled := strings.Cut(name, "=")
	if labelled {
		name = rest
	}
	s = &Store{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	switch {
	case name == storeRAM:
		s.Label, err = "ram", s.loop("/dev/shm", ramBytes)
	case strings.HasPrefix(name, storeFile):
		s.Label, err = "file", s.loop(strings.TrimPrefix(name, storeFile), fileBytes)
	default:
		err = s.existing(name)
	}
	if labelled {
		s.Label = label
	}
	if err == nil && s.Device != "" {
		s.Dir, err = os.MkdirTemp("", "walsidecar-bench-mnt-")
		s.remove = append(s.remove, func() error { return os.Remove(s.Dir) })
	}
	return s, err
}

func (s *Store) existing(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("store %q: legal is ram, file:DIR, a block device or a directory: %w", path, err)
	}
	s.Label = filepath.Base(path)
	switch {
	case info.IsDir():
		s.Dir, s.Bytes = path, dirBytes
		return nil
	case info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0:
		s.Device = path
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		s.Bytes, err = f.Seek(0, io.SeekEnd)
		return err
	}
	return fmt.Errorf("store %q: legal is ram, file:DIR, a block device or a directory", path)
}

// loop makes a loop device with direct I/O over a new file in dir. All of the file is
// written first: otherwise the first lap would allocate it.
func (s *Store) loop(dir string, bytes int64) error {
	if os.Geteuid() != 0 {
		return errors.New("loop devices need root: name a block device or a directory instead")
	}
	f, err := os.CreateTemp(dir, "walsidecar-bench-*.img")
	if err != nil {
		return err
	}
	defer f.Close()
	s.remove = append(s.remove, func() error { return os.Remove(f.Name()) })
	if err := fill(f, bytes); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	device, err := run("losetup", "--find", "--show", "--direct-io=on", f.Name())
	if err != nil {
		return err
	}
	s.Device, s.Bytes = strings.TrimSpace(device), bytes
	s.remove = append(s.remove, func() error { _, err := run("losetup", "--detach", s.Device); return err })
	return nil
}

func fill(f *os.File, bytes int64) error {
	chunk := make([]byte, 1<<20)
	for at := int64(0); at < bytes; at += int64(len(chunk)) {
		if _, err := f.WriteAt(chunk, at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// Close unmounts, and removes what OpenStore made.
func (s *Store) Close() error {
	var errs []error
	if s.Device != "" {
		errs = append(errs, s.unmount())
	}
	for i := len(s.remove) - 1; i >= 0; i-- {
		errs = append(errs, s.remove[i]())
	}
	s.remove = nil
	return errors.Join(errs...)
}

// Fresh empties the store: a new filesystem at Dir, or, with raw, a blank device. It
// returns the directory to use, "" for a blank device.
func (s *Store) Fresh(raw bool) (dir string, err error) {
	if s.Device == "" {
		return s.freshDir()
	}
	if err := s.unmount(); err != nil {
		return "", err
	}
	if err := blank(s.Device); err != nil {
		return "", err
	}
	if raw {
		return "", nil
	}
	if err := s.mount(); err != nil {
		return "", err
	}
	return s.Dir, nil
}

// freshDir makes a new directory in that of the store, and removes the one before.
func (s *Store) freshDir() (string, error) {
	dir := filepath.Join(s.Dir, "walsidecar-bench")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o755)
}

// mount makes an ext4. Nothing is discarded: that would punch holes into the file of a
// loop device.
func (s *Store) mount() error {
	if _, err := run("mkfs.ext4", "-q", "-F", "-T", "largefile", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", s.Device); err != nil {
		return err
	}
	if _, err := run("mount", "-o", "noatime,noinit_itable,nodiscard", s.Device, s.Dir); err != nil {
		return err
	}
	unix.Sync()
	return os.Chmod(s.Dir, 0o755) // PostgreSQL's user has to get through
}

func (s *Store) unmount() error {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return err
	}
	if !strings.Contains(string(mounts), " "+s.Dir+" ") {
		return nil
	}
	_, err = run("umount", s.Dir)
	return err
}

// blank writes zeros where a log or a filesystem shows.
func blank(device string) error {
	f, err := os.OpenFile(device, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for _, at := range []int64{0, max(0, end-int64(len(zeros)))} {
		if _, err := f.WriteAt(zeros, at); err != nil {
			return err
		}
	}
	return f.Sync()
}

func run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
