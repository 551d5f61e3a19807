package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestChaosSchedule injects random faults of the network and of processes, drawn from SEED, often
// two at once, while 16 streams decode, for SHOAL_CHAOS (default 90 s). It runs first unencrypted
// on loopback addresses, then with a cluster key, where every byte may be changed. Each round must
// equal the undisturbed run and leave the cluster complete.
func TestChaosSchedule(t *testing.T) {
	testlevel.NeedFull(t)
	seed, span := uint64(7), 90*time.Second
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	if d, err := time.ParseDuration(os.Getenv("SHOAL_CHAOS")); err == nil {
		span = d
	}
	for _, keyed := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "keyed"}[keyed], func(t *testing.T) { schedule(t, keyed, seed, span/2) })
	}
}

func schedule(t *testing.T, keyed bool, seed uint64, span time.Duration) {
	r := rand.New(rand.NewPCG(seed, 99))
	reqs := streaming(16, 24)
	x := newWired(t, keyed, 4, "--replicas", "1", "--sync-deadline", "2s", "--step-deadline", "6s")
	want, _ := x.undisturbed(t, reqs)
	before := x.calm(4)
	a := newAudit()
	stop := a.follow(x.look)
	var found, stalls []time.Duration
	for began := time.Now(); time.Since(began) < span; {
		f := x.open(reqs)
		f.reach(t, int64(40+r.IntN(200)))
		epoch, at := x.look().Epoch, time.Now()
		what := ""
		for range 1 + r.IntN(2) {
			what += x.injectRandom(r, keyed) + "; "
		}
		over := time.AfterFunc(time.Duration(500+r.IntN(6000))*time.Millisecond, x.endFaults)
		for time.Since(at) < 8*time.Second && f.ended.Load() < int64(len(reqs)) {
			if x.look().Epoch > epoch {
				found = append(found, time.Since(at))
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.wg.Wait()
		over.Stop()
		x.endFaults()
		stall := time.Duration(0)
		for i, s := range f.got {
			stall = max(stall, s.worst)
			switch {
			case f.errs[i] != nil || !s.done:
				a.look("I8", 0, fmt.Sprintf("I8: %s%s: %v after %d events", what, reqs[i].name, f.errs[i], len(s.events)))
			case s.text() != want[i]:
				a.look("I3", 0, fmt.Sprintf("I3: %s%s differs from the undisturbed run %s", what, reqs[i].name, firstDifference(want[i], s.text())))
			}
		}
		a.look("I3", len(reqs))
		a.look("I8", len(reqs))
		stalls = append(stalls, stall)
		for i, p := range x.procs {
			select {
			case <-p.done:
				x.join(i)
			default:
			}
		}
		x.waitNodes(4, 2*recoverLimit)
		t.Logf("%slongest silence %.2f s, epoch %d to %d", what, stall.Seconds(), epoch, x.look().Epoch)
	}
	after := x.back(4, before)
	stop()
	a.returned(before, after)
	a.report(t, "I3", "I5", "I6", "I7", "I8")
	t.Logf("seed %d, %d rounds; loss noticed: %s; longest silence: %s", seed, len(stalls), spread(found), spread(stalls))
	t.Logf("%d tokens computed in all, %d a round undisturbed; %.1f MB of tensors", a.rows, before.StepRows, float64(a.wire)/1e6)
}

// injectRandom injects a random fault and describes it.
func (x *wired) injectRandom(r *rand.Rand, keyed bool) string {
	i := r.IntN(len(x.nodes))
	at, all := x.nodes[i:i+1], append([]*port{x.head}, x.nodes...)
	other := x.nodes[(i+1+r.IntN(len(x.nodes)-1))%len(x.nodes)]
	only := x.tensors()
	if keyed {
		only = nil
	}
	switch r.IntN(8) {
	case 0:
		x.w.between(at, all, true, cut)
		return fmt.Sprintf("n%d is cut off", i)
	case 1:
		x.w.between(at, all, false, cut)
		return fmt.Sprintf("n%d's packets are lost", i)
	case 2:
		x.w.between(at, []*port{other}, true, cut)
		return fmt.Sprintf("n%d and n%d are separated", i, other.at-2)
	case 3:
		x.w.between(all, all, false, func(r *rule) { r.Delay = 3 * time.Millisecond })
		return "every packet takes 3 ms longer"
	case 4:
		x.w.between(all, all, false, func(r *rule) { r.Loss, r.Duplicate = 1.0/60, 1.0/40 })
		return "packets are lost and doubled"
	case 5:
		x.w.between(x.nodes, x.nodes, false, func(r *rule) { r.flip, r.most, r.only = 60, 3, only })
		return "bits are flipped"
	case 6:
		x.w.between(x.nodes, x.nodes, false, func(r *rule) { r.reset, r.most, r.only = 60, 3, only })
		return "connections break"
	}
	if r.IntN(2) == 0 {
		_ = x.procs[i].cmd.Process.Signal(syscall.SIGSTOP)
		return fmt.Sprintf("n%d is frozen", i)
	}
	x.procs[i].kill(x.t)
	return fmt.Sprintf("n%d is killed", i)
}

// endFaults ends every fault except deaths.
func (x *wired) endFaults() {
	x.w.heal()
	for _, p := range x.procs {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	}
}
