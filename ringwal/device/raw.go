package device

import "errors"

func openRaw(path string, o OpenOptions) (Device, error) { return nil, errors.New("skeleton") }
