package sim

import (
	"bufio"
	"flag"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walsidecar/walsidecar/ringwal"
)

var (
	seedFlag      = flag.Uint64("seed", 0, "play the one history of this seed; 0: WALSIDECAR_SEED, or many")
	kindFlag      = flag.String("kind", "", "of the histories that TestHistories plays: "+strings.Join(kindNames[:], ", "))
	historiesFlag = flag.Int("histories", 0, "histories that TestHistories plays; 0: WALSIDECAR_SIM_HISTORIES, or 2000")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The mutation test shows that bugs break promises, not only rules.
	outcomesOnly = os.Getenv("WALSIDECAR_SIM_OUTCOMES") != ""
	os.Exit(m.Run())
}

func fromEnvironment(t *testing.T, name string) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// oneSeed is the seed to replay, 0 when many are to be played.
func oneSeed(t *testing.T) uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return fromEnvironment(t, "WALSIDECAR_SEED")
}

// options are those of TestHistories.
func options(t *testing.T) Options {
	if *kindFlag == "" {
		return Options{}
	}
	i := slices.Index(kindNames[:], *kindFlag)
	if i < 0 {
		t.Fatalf("no kind of histories is called %q", *kindFlag)
	}
	return Options{Kind: Kind(i)}
}

// fixedSeeds are the same in every run; what follows them is not.
const fixedSeeds = 1000

// TestHistories plays the seeds that once failed, then many.
func TestHistories(t *testing.T) {
	if seed := oneSeed(t); seed != 0 {
		play(t, options(t), []uint64{seed})
		return
	}
	if *kindFlag == "" {
		play(t, Options{}, oldSeeds(t))
	}
	n := *historiesFlag
	if n == 0 {
		n = int(fromEnvironment(t, "WALSIDECAR_SIM_HISTORIES"))
	}
	if n == 0 {
		n = 2000
	}
	if testing.Short() {
		n /= 10
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
		if i >= fixedSeeds {
			seeds[i] = uint64(time.Now().UnixNano()) + uint64(i)
		}
	}
	play(t, options(t), seeds)
}

func TestP1_AnAckLeavesOnlyOnceItsFramesAreOnTheDisk(t *testing.T)   { few(t, Honest, 100) }
func TestP2_AckedRecordsSurviveCrashesAndLateWrites(t *testing.T)    { few(t, Late, 150) }
func TestP3_WhatWasNeverAckedDoesNotComeBack(t *testing.T)           { few(t, Late, 151) }
func TestP4_AnOffsetNeverNamesTwoRecords(t *testing.T)               { few(t, Honest, 101) }
func TestP7_DamageToAckedDataStopsTheStart(t *testing.T)             { few(t, Lying, 250) }
func TestP10_AFailedOrStalledWriteIsFinal(t *testing.T)              { few(t, Failing, 150) }
func TestP12_AFullLogTakesWhatFreesSpaceAndThenAppends(t *testing.T) { few(t, Honest, 102) }
func TestASnapshotOfTheLogIsAnEarlierStateOfIt(t *testing.T)         { few(t, Restored, 100) }

// withStore gives every history an object store that fails now and then.
func withStore(p *profile) {
	p.store, p.upload = true, 60
	p.storeFault, p.outage = 0.05, 0.003
	p.linger, p.grace = time.Millisecond, 100*time.Millisecond
}

func TestP2_EveryAckedRecordIsInTheLogOrInTheStoreOnce(t *testing.T) {
	fewWith(t, Honest, 103, withStore)
}
func TestP4_AnOffsetNamesOneRecordInTheLogAndInTheStore(t *testing.T) {
	fewWith(t, Late, 104, withStore)
}
func TestP5_NothingIsTrimmedThatNoManifestHolds(t *testing.T)               { fewWith(t, Honest, 105, withStore) }
func TestP6_AnOlderOwnerNeverChangesTheManifest(t *testing.T)               { fewWith(t, Peers, 106, withStore) }
func TestP6_AFormerOwnerAcksNothingThatIsNotInTheRecoveredLog(t *testing.T) { few(t, Peers, 300) }
func TestP8_AWriteOfAFormerOwnerNeverGetsThrough(t *testing.T)              { few(t, Peers, 107) }
func TestP11_NothingIsInTheStoreThatIsNotDurable(t *testing.T)              { fewWith(t, Late, 108, withStore) }
func TestP12_AfterAnOutageOfTheStoreTheLogIsEmptiedAndAppends(t *testing.T) {
	fewWith(t, Honest, 109, withStore)
}

// few plays n histories of one kind. The seeds of two tests differ where n does.
func few(t *testing.T, kind Kind, n int) {
	t.Helper()
	fewWith(t, kind, n, nil)
}

func fewWith(t *testing.T, kind Kind, n int, adjust func(*profile)) {
	t.Helper()
	o := Options{Kind: kind, adjust: adjust}
	if seed := oneSeed(t); seed != 0 {
		play(t, o, []uint64{seed})
		return
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(1_000_000*n + i)
	}
	play(t, o, seeds)
}

// play plays the histories of those seeds, on every core, up to the first failure.
func play(t *testing.T, o Options, seeds []uint64) (total Stats) {
	t.Helper()
	var failed *Failure
	var mu sync.Mutex
	var next atomic.Int64
	var workers sync.WaitGroup
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(seeds) {
					return
				}
				stats, failure := Run(o.of(seeds[i]))
				mu.Lock()
				total.Add(stats)
				if failure != nil && failed == nil {
					failed = failure
					next.Store(int64(len(seeds)))
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if failed != nil {
		t.Logf("%s", failed.Trace)
		kind := ""
		if *kindFlag != "" {
			kind = " -kind " + *kindFlag
		}
		t.Errorf("%v\nafter %d histories; replay with: go test ./sim -run '^%s$'%s -seed %d", failed, total.Histories, t.Name(), kind, failed.Seed)
	}
	t.Logf("%d histories in %.1fs, %.0f per second: %+v", total.Histories, time.Since(began).Seconds(),
		float64(total.Histories)/time.Since(began).Seconds(), total)
	return total
}

func (o Options) of(seed uint64) Options {
	o.Seed = seed
	return o
}

// TestALogGoesRoundAThousandTimes: few crashes, large records, everything trimmed.
func TestALogGoesRoundAThousandTimes(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds")
	}
	total := play(t, Options{Kind: Honest, adjust: func(p *profile) {
		p.steps, p.crash, p.startCrash, p.shutdown, p.starved, p.inFlight, p.superblock = 900_000, 0.0005, 0.01, 0.0001, 0, 8, 15
		p.trimmer, p.appends, p.trims, p.clients, p.small, p.medium, p.large = true, 60, 40, 5, 5, 20, 60
		p.names, p.seals, p.deletes = 2, 0, 0
		p.geometry = ringwal.Geometry{BlockBytes: 4096, MaxFrameBytes: 16 << 10, CapacityBytes: 300 << 10, WindowBytes: 64 << 10, CheckpointMaxBytes: 8 << 10}
	}}, []uint64{1})
	if total.Laps < 1000 {
		t.Errorf("only %d laps", total.Laps)
	}
}

// TestReadersOfALogThatJumped: package reader over starts that jump, the first one of
// the log included, and crash again.
func TestReadersOfALogThatJumped(t *testing.T) {
	seeds := make([]uint64, 200)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	play(t, Options{Kind: Late, adjust: func(p *profile) {
		p.reader, p.startCrash, p.steps, p.read = true, 0.1, 150, 20
	}}, seeds)
}

// TestTheSmallestLegalLog: the geometry that Format gives to MinLogBytes.
func TestTheSmallestLegalLog(t *testing.T) {
	g, err := ringwal.DefaultGeometry(ringwal.MinLogBytes, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []Kind{Honest, Late, Lying} {
		play(t, Options{Kind: kind, adjust: func(p *profile) {
			p.geometry, p.steps, p.large, p.reader = g, 3000, 60, false
		}}, []uint64{1, 2})
	}
}

// oldSeeds are the seeds in testdata/seeds.txt: one a line, with what it found.
func oldSeeds(t *testing.T) []uint64 {
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var seeds []uint64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		seed, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			t.Fatalf("testdata/seeds.txt: %v", err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// TestAHistoryIsTheSameEveryTime: what a seed found must be found again.
func TestAHistoryIsTheSameEveryTime(t *testing.T) {
	for seed := range uint64(20) {
		a, failedA := run(Options{Seed: seed}, false)
		b, failedB := run(Options{Seed: seed}, true)
		if a != b || (failedA == nil) != (failedB == nil) {
			t.Fatalf("seed %d: two histories: %+v and %+v", seed, a, b)
		}
	}
}
