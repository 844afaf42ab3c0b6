package ringwal

import "testing"

// BenchmarkWritePath is what the commit loop spends in this room per record of 1 KiB, in
// frames of 64: bytes are those of the frames.
func BenchmarkWritePath(b *testing.B) {
	g := tiny
	g.MaxFrameBytes, g.WindowBytes, g.CapacityBytes = 128<<10, 1<<20, 64<<20
	r := newRig(b, g, 0).start(false)
	r.log.buffers = &oneBuffer{alignedBytes(int(g.MaxFrameBytes), 4096)}
	r.log.limits[ClassAppend] = 1 << 62
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, _, err := r.log.Reserve(ClassAppend, 1024, 1); err != nil {
			b.Fatal(err)
		}
		if i%64 == 63 {
			r.log.CloseFrame(1)
			for f := r.log.Next(1); f != nil; f = r.log.Next(1) {
				r.log.Complete(f, nil, 1)
				r.log.Release(r.log.PopDurable())
			}
		}
	}
}

// BenchmarkRecover reads a log of 60 MiB from memory.
func BenchmarkRecover(b *testing.B) {
	g := tiny
	g.MaxFrameBytes, g.WindowBytes, g.CapacityBytes = 1<<20, 8<<20, 64<<20
	r := newRig(b, g, 0).start(false)
	r.log.limits[ClassAppend] = 1 << 62
	for range 60 {
		r.write('x', g.MaxItemBytes())
	}
	b.SetBytes(60 << 20)
	b.ResetTimer()
	for range b.N {
		if _, err := r.recover(Visitor{}); err != nil {
			b.Fatal(err)
		}
	}
}
