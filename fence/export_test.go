package fence

import "golang.org/x/sys/unix"

// OpenTarget opens the raw commands of a block device.
func OpenTarget(path string) (Target, Capabilities, error) {
	k, caps, err := openKernel(path, unix.O_RDWR)
	if err != nil {
		return nil, caps, err
	}
	return k, caps, nil
}

// ReadBothWays reads the status by the kernel's ioctls and by passthrough.
func ReadBothWays(t Target) (byKernel, byPassthrough Status, err error) {
	k := t.(*kernel)
	if byKernel, err = k.readByKernel(); err != nil {
		return byKernel, byPassthrough, err
	}
	if k.transport == NVMe {
		byPassthrough, err = k.nvmeReport()
	} else {
		byPassthrough, err = k.scsiStatus()
	}
	return byKernel, byPassthrough, err
}
