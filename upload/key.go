package upload

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Kind is what an object holds. The numbers are part of the format.
type Kind uint8

// The kinds of objects.
const (
	KindData  Kind = 1 // records and a journal
	KindState Kind = 2 // a checkpoint
	KindIndex Kind = 3 // groups of objects
)

// String is the kind in one lower case word.
func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindState:
		return "state"
	case KindIndex:
		return "index"
	}
	return "unknown"
}

func (k Kind) folder() string {
	switch k {
	case KindData:
		return "o/"
	case KindState:
		return "state/"
	}
	return "index/"
}

// ObjectID names an object of a node. Sequences count over all kinds; one of an
// incarnation is never used twice, whether the put was answered or not.
type ObjectID struct {
	Sequence    uint64
	Incarnation [16]byte
}

// String is the last part of the object's key.
func (id ObjectID) String() string {
	return fmt.Sprintf("%016x-%x", id.Sequence, id.Incarnation)
}

// Key is the object's key in the store.
func (id ObjectID) Key(node string, k Kind) string {
	return Prefix(node) + k.folder() + id.String()
}

// ManifestKey is the key of the node's manifest.
func ManifestKey(node string) string { return Prefix(node) + "manifest" }

// Prefix is what all keys of a node begin with: two hex digits that spread the nodes
// over the store, and the node's name. Bytes of it that are not letters, digits, '-',
// '_' or '.', and a '.' at its start, are written =XX.
func Prefix(node string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%02x/", byte(xxhash.Sum64String(node)))
	for i := range len(node) {
		c := node[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0
		if plain {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	b.WriteByte('/')
	return b.String()
}

// ParseKey tells which object of the node a key names; false for the manifest, for
// keys of other nodes, and for what is not a key of this format.
func ParseKey(node, key string) (Kind, ObjectID, bool) {
	rest, ok := strings.CutPrefix(key, Prefix(node))
	if !ok {
		return 0, ObjectID{}, false
	}
	for _, k := range []Kind{KindData, KindState, KindIndex} {
		name, ok := strings.CutPrefix(rest, k.folder())
		if !ok || len(name) != 16+1+32 || name[16] != '-' {
			continue
		}
		var b [8 + 16]byte
		if _, err := hex.Decode(b[:8], []byte(name[:16])); err != nil {
			return 0, ObjectID{}, false
		}
		if _, err := hex.Decode(b[8:], []byte(name[17:])); err != nil {
			return 0, ObjectID{}, false
		}
		id := ObjectID{Incarnation: [16]byte(b[8:])}
		for _, c := range b[:8] {
			id.Sequence = id.Sequence<<8 | uint64(c)
		}
		return k, id, id.String() == name // one spelling only: lower case
	}
	return 0, ObjectID{}, false
}

// NodeOfManifest tells whose manifest a key of the store's root is; false for other keys.
func NodeOfManifest(key string) (node string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[2] != "manifest" {
		return "", false
	}
	var b strings.Builder
	for rest := parts[1]; rest != ""; {
		c := rest[0]
		rest = rest[1:]
		if c == '=' {
			var one [1]byte
			if len(rest) < 2 {
				return "", false
			}
			if _, err := hex.Decode(one[:], []byte(rest[:2])); err != nil {
				return "", false
			}
			c, rest = one[0], rest[2:]
		}
		b.WriteByte(c)
	}
	return b.String(), ManifestKey(b.String()) == key
}
