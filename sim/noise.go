package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

// noiseBytes is longer than any payload.
const noiseBytes = 3 << 20

var noiseOnce = sync.OnceValue(func() []byte {
	b := make([]byte, noiseBytes)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
})

// noise is a payload without memory of its own: a piece of one block of random
// bytes. Two pieces of more than a few bytes are equal only by chance.
type noise struct{ at, length uint32 }

func newNoise(rng *rand.Rand, length int) noise {
	return noise{at: rng.Uint32N(uint32(noiseBytes - length)), length: uint32(length)}
}

func (n noise) bytes() []byte { return noiseOnce()[n.at : n.at+n.length] }
