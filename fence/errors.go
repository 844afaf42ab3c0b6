package fence

import "errors"

// What can go wrong. Match with errors.Is.
var (
	// ErrConflict is a command that the device refused because of its reservations:
	// not registered, another key than thought, or another holder.
	ErrConflict = errors.New("reservation conflict")

	// ErrHeld refuses to take a device from a holder that shows signs of life, or that
	// may not be taken from at all.
	ErrHeld = errors.New("held by another")

	// ErrLostRace is an Acquire that another one overtook.
	ErrLostRace = errors.New("another was faster")

	// ErrFenced is a reservation that this start held and holds no more.
	ErrFenced = errors.New("fenced")

	// ErrForeign is a reservation that is not of this log: another node's key, or a
	// type that walsidecar never makes. It is never touched.
	ErrForeign = errors.New("a reservation that is not of this log")

	// ErrUnsupported is a device without the reservations that are needed.
	ErrUnsupported = errors.New("no persistent reservations")

	// ErrVolatile is a device whose reservations a target reset forgets.
	ErrVolatile = errors.New("reservations do not persist through power loss")

	// ErrPermission is a call that the kernel kept from this user.
	ErrPermission = errors.New("not permitted")

	// ErrUnanswered is a command that did not return in time: its outcome is unknown.
	ErrUnanswered = errors.New("no answer from the device")

	// ErrFailed is a command that failed on its way or in the device: what came of it is
	// unknown. LIO also answers so where ErrConflict is meant: to a reserve or clear of a host
	// that is not registered, while nobody holds the reservation.
	ErrFailed = errors.New("the command failed and what came of it is unknown")

	// ErrNotVerified is a command that succeeded, and the device's state shows it not.
	ErrNotVerified = errors.New("the device's state does not show what it confirmed")

	// ErrMalformed is a report of a device that cannot be decoded.
	ErrMalformed = errors.New("malformed report")

	// ErrNotExclusive is an Acquire on a device that was not opened exclusively.
	ErrNotExclusive = errors.New("the device is not open exclusively")
)
