package store_test

import (
	"fmt"
	"testing"

	"github.com/walsidecar/walsidecar/upload/store"
	"github.com/walsidecar/walsidecar/upload/store/s3test"
)

// BenchmarkStores is what one request takes, one after the other.
func BenchmarkStores(b *testing.B) {
	for _, kind := range []struct {
		name string
		open func(*testing.B) store.Store
	}{
		{"directory", func(b *testing.B) store.Store { return open(b, b.TempDir(), store.Options{}) }},
		{"s3", func(b *testing.B) store.Store {
			return open(b, s3test.Start(b).URL("bench"), s3test.Options())
		}},
	} {
		s := kind.open(b)
		for _, size := range []int{1 << 10, 8 << 20} {
			body := make([]byte, size)
			b.Run(fmt.Sprintf("%s/put/%dKiB", kind.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(size))
				for i := range b.N {
					if _, err := s.PutIfAbsent(b.Context(), fmt.Sprintf("%d/%d-%d", size, b.N, i), body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		if _, err := s.PutIfAbsent(b.Context(), "big", make([]byte, 8<<20)); err != nil {
			b.Fatal(err)
		}
		for _, size := range []int{4 << 10, 256 << 10, 8 << 20} {
			dst := make([]byte, size)
			b.Run(fmt.Sprintf("%s/range/%dKiB", kind.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for range b.N {
					if err := s.GetRange(b.Context(), "big", 0, dst); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		v, err := s.PutIfAbsent(b.Context(), "manifest", []byte("0"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(kind.name+"/replace/64KiB", func(b *testing.B) {
			for i := range b.N {
				body := make([]byte, 64<<10)
				copy(body, fmt.Append(nil, b.N, i))
				if v, err = s.PutIfMatch(b.Context(), "manifest", body, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
