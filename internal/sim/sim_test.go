package sim

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

var seed = flag.Uint64("seed", 1, "the seed of TestSeed")

// schedules is the number of seeds that a test runs.
func schedules(t *testing.T) int {
	if s := os.Getenv("SHOAL_SIM_SCHEDULES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("SHOAL_SIM_SCHEDULES=%q: want a positive number", s)
		}
		return n
	}
	switch {
	case raceEnabled:
		return 200
	case testing.Short():
		return 1000
	case testlevel.Long():
		return 10000
	}
	return 4000
}

// play runs seeds [from, from+n) on all CPUs; each run is still one goroutine.
func play(n int, o Options, each func(*Report) (more bool)) {
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // many small short-lived worlds
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	more := true
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if int(i) > n {
					return
				}
				o := o
				o.Seed = uint64(i)
				r := Run(o)
				mu.Lock()
				more = more && each(r)
				stop := !more
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
}

// explain runs a broken seed again, with its transcript.
func explain(t *testing.T, seed uint64, bug Bug) {
	t.Helper()
	r := Run(Options{Seed: seed, Bug: bug, Trace: true})
	t.Errorf("seed %d: %s\n%s\n\nreplay: %s", seed, r.Broken, r.Transcript, r.Replay())
}

// TestSchedules: no schedule breaks a guarantee, and together they exercise all situations.
func TestSchedules(t *testing.T) {
	var cover Cover
	var events, steps, runs int
	var slowest time.Duration
	n := schedules(t)
	play(n, Options{}, func(r *Report) bool {
		cover.add(&r.Cover)
		events, steps, runs = events+r.Events, steps+r.Steps, runs+1
		slowest = max(slowest, r.Recovery)
		if r.Broken != "" {
			explain(t, r.Seed, NoBug)
			return false
		}
		return true
	})
	t.Logf("%d schedules, %d events, %d steps; the last request ended %v after the last fault\n%s", runs, events, steps, slowest, &cover)
	if missing := cover.Missing(); !t.Failed() && n >= 5000 && len(missing) > 0 {
		t.Errorf("%d schedules never exercised: %v", n, missing)
	}
}

// TestSeed runs one seed and prints its transcript.
func TestSeed(t *testing.T) {
	r := Run(Options{Seed: *seed, Trace: true})
	t.Logf("seed %d\n%s", *seed, r.Transcript)
	if r.Broken != "" {
		t.Errorf("seed %d: %s", *seed, r.Broken)
	}
}

// TestOldSeeds runs seeds that once found bugs. A change of the draws gives other schedules for the
// same seeds. So each bug also has its own test.
func TestOldSeeds(t *testing.T) {
	for _, seed := range []uint64{
		31,     // an abandoned placement served when its last node answered the load
		128123, // a spare held a higher epoch than a later coordinator retired
		28123,  // a coordinator that had lost the lease retired a node that followed its successor
		5729,   // a late answer to an earlier load reported outdated caches
		537,    // all nodes hung in a step; one was fenced when another continued a moment earlier
		385,    // the same in a load
		140,    // one of two nodes was fenced as slow although the network was
	} {
		if r := Run(Options{Seed: seed}); r.Broken != "" {
			explain(t, seed, NoBug)
		}
	}
}

// TestSameSeedSameRun: a transcript is a function of its seed.
func TestSameSeedSameRun(t *testing.T) {
	for seed := range uint64(20) {
		a, b := Run(Options{Seed: seed, Trace: true}), Run(Options{Seed: seed, Trace: true})
		if a.Transcript != b.Transcript || a.Events != b.Events {
			t.Fatalf("seed %d gave two transcripts:\n%s\n\n%s", seed, a.Transcript, b.Transcript)
		}
		if c := Run(Options{Seed: seed}); c.Events != a.Events {
			t.Fatalf("seed %d: tracing changes the run: %d events, %d with a transcript", seed, c.Events, a.Events)
		}
	}
}

// TestBugsAreCaught: each mutant breaks a guarantee within the default schedules.
func TestBugsAreCaught(t *testing.T) {
	for bug := NoFence; bug < bugs; bug++ {
		t.Run(bug.String(), func(t *testing.T) { caught(t, Options{Bug: bug}) })
	}
}

// TestBugsHaveConsequences: without fences not only are stale messages accepted; some client gets
// wrong tokens or none, or memory is lost.
func TestBugsHaveConsequences(t *testing.T) {
	for _, bug := range []Bug{NoFence, NoSocketFence, NoBatcherFence} {
		t.Run(bug.String(), func(t *testing.T) { caught(t, Options{Bug: bug, Blind: true}) })
	}
}

func caught(t *testing.T, o Options) {
	if raceEnabled {
		t.Skip("each run is one goroutine; the other tests are enough under the race detector")
	}
	var found *Report
	runs := 0
	play(10000, o, func(r *Report) bool {
		runs++
		if r.Broken != "" {
			found = r
		}
		return found == nil
	})
	if found == nil {
		t.Fatalf("%d schedules did not notice", runs)
	}
	if r := Run(Options{Seed: found.Seed}); r.Broken != "" {
		t.Fatalf("seed %d breaks without the mutant too: %s", found.Seed, r.Broken)
	}
	t.Logf("after %d schedules, seed %d: %.200s", runs, found.Seed, found.Broken)
}
