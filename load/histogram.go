package load

import (
	"math/bits"
	"time"
)

const (
	// subBits is the number of bits kept of a value: a bucket is at most
	// 1/256 (0.4 %) of the value it stands for wide.
	subBits = 8
	subs    = 1 << subBits
	// maxValueBits bounds a value to 2^42 ns, 73 minutes; longer ones count as that.
	maxValueBits = 42
	bucketCount  = (maxValueBits - subBits + 1) * subs
)

// Histogram counts durations in buckets whose width grows with the value, so
// that a percentile is exact to 0.4 % over the whole range from 1 ns to 73
// minutes. The zero value is empty and ready. It is for one goroutine; merge
// several with Add.
type Histogram struct {
	counts [bucketCount]uint64
	total  uint64
	max    time.Duration
}

// Record counts one duration; a negative one counts as zero.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(uint64(d))]++
	h.total++
	h.max = max(h.max, d)
}

// Add merges the counts of o into h.
func (h *Histogram) Add(o *Histogram) {
	for i, n := range &o.counts {
		h.counts[i] += n
	}
	h.total += o.total
	h.max = max(h.max, o.max)
}

// Count is the number of durations recorded.
func (h *Histogram) Count() uint64 { return h.total }

// Max is the longest duration recorded, exactly.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile is the smallest bucket's upper bound that at least the share q (0 to
// 1) of the durations do not exceed, never more than Max; 0 when empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := max(uint64(q*float64(h.total)+0.5), 1)
	var seen uint64
	for i, n := range &h.counts {
		seen += n
		if seen >= rank {
			return min(upperBound(i), h.max)
		}
	}
	return h.max
}

// bucketOf: values below 2^subBits have a bucket each; above, a bucket is the
// exponent and the subBits bits behind the leading one.
func bucketOf(v uint64) int {
	v = min(v, 1<<maxValueBits-1)
	exponent := bits.Len64(v) - subBits - 1
	if exponent < 0 {
		return int(v)
	}
	return (exponent+1)<<subBits + int(v>>exponent) - subs
}

// upperBound is the largest value that bucketOf maps to bucket i.
func upperBound(i int) time.Duration {
	if i < subs {
		return time.Duration(i)
	}
	exponent := i>>subBits - 1
	return time.Duration((uint64(i&(subs-1)+subs)+1)<<exponent - 1)
}
