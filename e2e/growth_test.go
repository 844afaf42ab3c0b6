package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// series are samples of what must not grow with time, by name, oldest first.
type series map[string][]float64

// slack is how much more a value may be at the end than it was before: that share of it and
// so much besides.
type slack struct{ share, besides float64 }

// grown names what is more in the last third than in the second, medians of both, by more
// than its slack. The first third is for what a sidecar fills once: caches, pools, stacks.
func (s series) grown(slacks map[string]slack) (complaints []string) {
	for name, allowed := range slacks {
		values := s[name]
		third := len(values) / 3
		if third == 0 {
			complaints = append(complaints, fmt.Sprintf("%s: %d samples say nothing", name, len(values)))
			continue
		}
		before, after := median(values[third:2*third]), median(values[2*third:])
		if after > before*(1+allowed.share)+allowed.besides {
			complaints = append(complaints, fmt.Sprintf("%s grew from %.6g to %.6g", name, before, after))
		}
	}
	slices.Sort(complaints)
	return complaints
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func TestWhatGrowsIsNamed(t *testing.T) {
	s := series{"one sample": {1}}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 90 {
		noise := random.Float64()
		s["flat"] = append(s["flat"], 1000+50*noise)
		s["filled once"] = append(s["filled once"], min(1000, 40*float64(i))+50*noise)
		s["with peaks"] = append(s["with peaks"], 1000+float64(i/20%2)*50*noise)
		s["leaks a little"] = append(s["leaks a little"], 1000+6*float64(i)+50*noise)
	}
	slacks := map[string]slack{}
	for name := range s {
		slacks[name] = slack{0.05, 10}
	}
	got := s.grown(slacks)
	if len(got) != 2 || !strings.HasPrefix(got[0], "leaks a little grew from 1") || got[1] != "one sample: 1 samples say nothing" {
		t.Errorf("%q", got)
	}
}
