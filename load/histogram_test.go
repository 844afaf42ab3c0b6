package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBucketsMeetWithoutGapOrOverlap(t *testing.T) {
	last := -1
	for v := uint64(0); v < 1<<20; v++ {
		b := bucketOf(v)
		if b != last && b != last+1 {
			t.Fatalf("value %d falls into bucket %d after bucket %d", v, b, last)
		}
		if uint64(upperBound(b)) < v {
			t.Fatalf("bucket %d of value %d ends at %d", b, v, upperBound(b))
		}
		last = b
	}
	if b := bucketOf(1 << 63); b != bucketCount-1 {
		t.Fatalf("the largest value falls into bucket %d, want the last, %d", b, bucketCount-1)
	}
}

func TestHistogramQuantilesAreWithinHalfAPercentOfTheSortedValues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var whole, left, right Histogram
	var values []time.Duration
	for i := range 100_000 {
		d := time.Duration(random.ExpFloat64() * float64(300*time.Microsecond))
		values = append(values, d)
		if i%2 == 0 {
			left.Record(d)
		} else {
			right.Record(d)
		}
	}
	whole.Add(&left)
	whole.Add(&right)
	slices.Sort(values)
	for _, q := range []float64{0.001, 0.5, 0.99, 0.999} {
		exact := values[int(q*float64(len(values)))]
		got := whole.Quantile(q)
		if diff := float64(got-exact) / float64(exact); diff < -0.005 || diff > 0.005 {
			t.Errorf("quantile %v is %v, exactly %v: off by %.2f %%", q, got, exact, 100*diff)
		}
	}
	if whole.Max() != values[len(values)-1] || whole.Quantile(1) != whole.Max() {
		t.Errorf("max %v, quantile(1) %v, want %v", whole.Max(), whole.Quantile(1), values[len(values)-1])
	}
	if whole.Count() != 100_000 {
		t.Errorf("count %d", whole.Count())
	}
}

func TestEmptyHistogramAnswersZero(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Error("an empty histogram has a quantile")
	}
}
