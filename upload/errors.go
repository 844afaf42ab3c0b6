package upload

import (
	"errors"
	"fmt"
)

var (
	// ErrDamagedObject says that an object, or a part of one, is not what was put
	// there. Nothing of that part was returned.
	ErrDamagedObject = errors.New("damaged object")
	// ErrMissingObject says that the manifest names an object that the store does not
	// have.
	ErrMissingObject = errors.New("an object that the manifest names is missing")
	// ErrManifest says that a manifest is damaged.
	ErrManifest = errors.New("damaged manifest")
	// ErrNoManifest says that the store holds nothing of that node.
	ErrNoManifest = errors.New("the store has no manifest of this node")
	// ErrNewerVersion says that an object or a manifest was written by a later version
	// of this program.
	ErrNewerVersion = errors.New("written in a format that this version does not know")
	// ErrNotSorted says that what was added to a [Builder] does not follow what was
	// added before: a mistake of the caller, or frames that do not belong together.
	ErrNotSorted = errors.New("frames, items or records out of order")
	// ErrTooLarge says that an object would exceed a limit of the format.
	ErrTooLarge = errors.New("larger than the format allows")
	// ErrNotArchived says that the store does not hold that part of the log.
	ErrNotArchived = errors.New("not in the object store")
)

// problem is what is wrong with some bytes: sentinel, the place inside of what was
// decoded, and the reason. Who knows the key wraps it with it.
func problem(sentinel error, part string, place int, format string, args ...any) error {
	return fmt.Errorf("%w: %s, byte %d: %s", sentinel, part, place, fmt.Sprintf(format, args...))
}

// inObject names the object that err is about.
func inObject(key string, err error) error {
	if errors.Is(err, ErrDamagedObject) {
		return fmt.Errorf("object %s: %w: run `walsidecar verify` on the store", key, err)
	}
	return fmt.Errorf("object %s: %w", key, err)
}
