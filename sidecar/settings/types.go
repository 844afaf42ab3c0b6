package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/walsidecar/walsidecar/upload/store"
)

// Size is a number of bytes, written as a whole decimal number with a unit: 512MiB.
type Size int64

// units are what a Size may end in, the longest first so that "MiB" is not read as "B".
var units = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1},
}

// Decode parses text; it is what envconfig calls.
func (s *Size) Decode(text string) error {
	for _, unit := range units {
		digits, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		if !allDigits(digits) {
			return errors.New("not a whole decimal number before the unit")
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > math.MaxInt64/unit.bytes {
			return errors.New("too large")
		}
		*s = Size(n * unit.bytes)
		return nil
	}
	return errors.New("it has no unit")
}

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	for _, u := range []int{3, 2, 1, 0} {
		if n := units[u]; s != 0 && int64(s)%n.bytes == 0 {
			return strconv.FormatInt(int64(s)/n.bytes, 10) + n.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// IOPS is a number of operations a second; 0 is one that was not set.
type IOPS int64

// maxIOPS is above what any volume is sold with.
const maxIOPS = 1_000_000

// Decode parses text; it is what envconfig calls.
func (i *IOPS) Decode(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !allDigits(text) || n < 1 || n > maxIOPS {
		return fmt.Errorf("not a number from 1 to %d", maxIOPS)
	}
	*i = IOPS(n)
	return nil
}

// allDigits reports whether text is one or more of 0 to 9: no sign, no prefix, no "_".
func allDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// WALPath names a log: a path, or uuid:LOG-UUID, or ebs:vol-ID. UUID and EBSVolume tell
// which.
type WALPath string

// Decode parses text; it is what envconfig calls.
func (p *WALPath) Decode(text string) error {
	if id, ok := strings.CutPrefix(text, "uuid:"); ok {
		if _, err := uuid.Parse(id); err != nil || len(id) != 36 {
			return errors.New("after uuid: comes the log's UUID, 36 characters")
		}
	}
	if id, ok := strings.CutPrefix(text, "ebs:"); ok {
		hex, ok := strings.CutPrefix(id, "vol-")
		if !ok || hex == "" || strings.Trim(hex, "0123456789abcdef") != "" {
			return errors.New("after ebs: comes the volume's id, vol- and hexadecimal digits")
		}
	}
	*p = WALPath(text)
	return nil
}

// UUID is the log UUID of a "uuid:" path, ok false for any other.
func (p WALPath) UUID() (id uuid.UUID, ok bool) {
	text, ok := strings.CutPrefix(string(p), "uuid:")
	if !ok {
		return uuid.UUID{}, false
	}
	id, err := uuid.Parse(text)
	return id, err == nil
}

// EBSVolume is the volume id ("vol-0abc") of an "ebs:" path, ok false for any other.
func (p WALPath) EBSVolume() (id string, ok bool) {
	return strings.CutPrefix(string(p), "ebs:")
}

// Store says where records are kept: an s3:// URL, a directory, or "none". The empty
// Store is one that was not set.
type Store string

// NoStore is the store of a sidecar whose application trims.
const NoStore Store = "none"

// Decode parses text; it is what envconfig calls.
func (s *Store) Decode(text string) error {
	scheme, _, hasScheme := strings.Cut(text, "://")
	switch {
	case hasScheme && scheme == "s3":
		if _, err := store.ParseS3(text); err != nil {
			return err
		}
	case hasScheme:
		return fmt.Errorf("unknown scheme %q", scheme+"://")
	}
	*s = Store(text)
	return nil
}

// NodeName is the name of a node: it goes into the superblock, and into object keys.
type NodeName string

// Decode parses text; it is what envconfig calls.
func (n *NodeName) Decode(text string) error {
	if len(text) > MaxNodeBytes {
		return fmt.Errorf("%d bytes long", len(text))
	}
	for i, c := range []byte(text) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", rune(c))) {
			return fmt.Errorf("%q does not belong at byte %d", c, i)
		}
	}
	*n = NodeName(text)
	return nil
}

// SocketPath is the path of a Unix socket.
type SocketPath string

// Decode parses text; it is what envconfig calls.
func (p *SocketPath) Decode(text string) error {
	if strings.HasPrefix(text, "@") {
		return errors.New("an abstract socket has no file mode to protect it")
	}
	if len(text) > MaxSocketPathBytes {
		return fmt.Errorf("%d bytes long, use a shorter or relative path", len(text))
	}
	*p = SocketPath(text)
	return nil
}

// OptionalSocket is the path of a Unix socket, or "off".
type OptionalSocket string

// Off reports whether there is no socket.
func (p OptionalSocket) Off() bool { return p == "off" || p == "" }

// Path is the path of the socket, where it is not off.
func (p OptionalSocket) Path() SocketPath { return SocketPath(p) }

// Decode parses text; it is what envconfig calls.
func (p *OptionalSocket) Decode(text string) error {
	var path SocketPath
	if err := path.Decode(text); err != nil {
		return err
	}
	*p = OptionalSocket(path)
	return nil
}

// Address is a TCP address to listen on, or "off".
type Address string

// Off reports whether there is nothing to listen on.
func (a Address) Off() bool { return a == "off" || a == "" }

// Decode parses text; it is what envconfig calls.
func (a *Address) Decode(text string) error {
	if text != "off" {
		_, port, err := net.SplitHostPort(text)
		if err != nil {
			return errors.New("not HOST:PORT")
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || !allDigits(port) || n > 65535 {
			return fmt.Errorf("port %q is not a number from 0 to 65535", port)
		}
	}
	*a = Address(text)
	return nil
}

// Allow lists who may connect beside the default.
type Allow struct {
	UIDs []uint32
	GIDs []uint32
}

// Decode parses text; it is what envconfig calls.
func (a *Allow) Decode(text string) error {
	var allow Allow
	for item := range strings.SplitSeq(text, ",") {
		kind, digits, _ := strings.Cut(item, ":")
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || !allDigits(digits) {
			return fmt.Errorf("%q is not uid:N or gid:N", item)
		}
		switch kind {
		case "uid":
			allow.UIDs = append(allow.UIDs, uint32(n))
		case "gid":
			allow.GIDs = append(allow.GIDs, uint32(n))
		default:
			return fmt.Errorf("%q is not uid:N or gid:N", item)
		}
	}
	*a = allow
	return nil
}

// String writes the list as it is set.
func (a Allow) String() string {
	var items []string
	for _, id := range a.UIDs {
		items = append(items, "uid:"+strconv.FormatUint(uint64(id), 10))
	}
	for _, id := range a.GIDs {
		items = append(items, "gid:"+strconv.FormatUint(uint64(id), 10))
	}
	return strings.Join(items, ",")
}

// Absolute returns the path made absolute, so that a message or a child process with
// another working directory can use it.
func (p SocketPath) Absolute() string {
	path, err := filepath.Abs(string(p))
	if err != nil {
		return string(p) // the working directory is gone; a relative path still says most
	}
	return path
}
