package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// coordinators returns the pids of a cluster's coordinator processes, by id.
func (s *system) coordinators(ids ...string) map[string]int {
	out, running := map[string]int{}, built.running()
	for _, pid := range s.children() {
		line := running[pid]
		for _, id := range ids {
			if strings.Contains(line, " coordinator ") && strings.Contains(line, " --id "+id+" ") {
				out[id] = pid
			}
		}
	}
	return out
}

// upPair starts a cluster of two nodes with a standby and a replicated store. It returns jobs and
// their undisturbed results.
func upPair(t *testing.T) (c *system, p *pair, reqs []request, want []string) {
	c = start(t, config{nodes: 2, args: []string{"--standby", "--data-dir", t.TempDir()}})
	at := &processCluster{t: t, httpClient: c.httpClient}
	p = &pair{t: t, at: [2]*processCluster{at, at}} // both share one address
	p.copies(0)
	r := rand.New(rand.NewPCG(6, 6))
	for i := range 3 {
		reqs = append(reqs, request{fmt.Sprintf("job %d", i), "/v1/completions",
			map[string]any{"prompt": ids(r, 20+30*i), "max_tokens": 250, "ignore_eos": true, "temperature": float64(i%2) * 0.8, "seed": i}})
	}
	return c, p, reqs, at.send(t, reqs, len(reqs))
}

// TestUpStandby: a coordinator of `shoal up --standby` is killed with running jobs. They continue at
// the same address, under the coordinator that gets the lease: the other one or the restarted one.
// Afterwards both are present again.
func TestUpStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("a takeover takes some ten seconds")
	}
	parallel(t)
	c, p, reqs, want := upPair(t)
	at := p.at[0]
	jobs := p.jobs(0, "killed", reqs)
	p.begun(0, jobs)
	before, _ := p.state(0)
	pids := c.coordinators("coordinator", "standby")
	first := pids[before.Store.Coordinator]
	if first == 0 || len(pids) != 2 {
		t.Fatalf("coordinators: %v, of which %s coordinates", pids, before.Store.Coordinator)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	t.Logf("killed: served again after %.1f s", p.serves(0, recoverLimit).Seconds())
	p.check(0, "killed", reqs, want, jobs)
	t.Logf("all jobs ended %.1f s after the kill", time.Since(began).Seconds())
	p.copies(0) // the killed coordinator has restarted with its copy
	after, _ := p.state(0)
	if after.Store.Term <= before.Store.Term || after.Epoch <= before.Epoch || len(after.Nodes) != 2 {
		t.Errorf("after epoch %d of %+v comes epoch %d of %+v with %d nodes", before.Epoch, *before.Store,
			after.Epoch, *after.Store, len(after.Nodes))
	}
	if now := c.coordinators("coordinator", "standby"); len(now) != 2 || now[before.Store.Coordinator] == first {
		t.Errorf("coordinators: %v, before %v", now, pids)
	}
	if err := c.head.cmd.Process.Signal(syscall.SIGHUP); err != nil { // SIGHUP ends nothing
		t.Fatal(err)
	}
	if a, err := at.try(context.Background(), "POST", "/v1/completions", map[string]any{"prompt": "a", "max_tokens": 2}); err != nil ||
		a.status != 200 {
		t.Errorf("a plain request: status %d %s, %v", a.status, a.body, err)
	}
	all := c.children()
	if err := c.head.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := c.head.end(t, requestLimit); code != 0 {
		t.Errorf("status %d after Ctrl-C, want 0", code)
	}
	c.waitEnded(all)
}

// TestChaosFrozenCoordinator: the coordinator of `shoal up --standby` is frozen with jobs and a
// stream running. The other one takes over at the same address. When the first one resumes it may
// have the address for a moment, so jobs and requests arrive throughout. Its answers are correct,
// jobs that it accepts complete, and it steps down and becomes the standby.
func TestChaosFrozenCoordinator(t *testing.T) {
	testlevel.NeedFull(t)
	c, p, reqs, want := upPair(t)
	flows := streaming(1, 250)
	whole := c.open(flows)
	whole.wait(t)
	jobs := p.jobs(0, "frozen", reqs)
	p.begun(0, jobs)
	cut := c.open(flows)
	cut.reach(t, 5)
	old, _ := p.state(0)
	pids := c.coordinators("coordinator", "standby")
	first := pids[old.Store.Coordinator]
	if first == 0 || len(pids) != 2 {
		t.Fatalf("coordinators: %v, of which %s coordinates", pids, old.Store.Coordinator)
	}
	freeze(t, first)
	defer func() { _ = syscall.Kill(first, syscall.SIGCONT) }() // otherwise it delays the end of a failed test

	// Connections to the frozen coordinator stay; new connections reach the other one.
	at := &processCluster{t: t, httpClient: newHTTPClient(t, c.base, "")}
	at.http.Transport.(*http.Transport).DisableKeepAlives = true
	p.at = [2]*processCluster{at, at}
	t.Logf("frozen: served again after %.1f s", p.serves(0, recoverLimit).Seconds())
	taken, _ := p.state(0)
	if taken.Store.Term <= old.Store.Term || taken.Store.Coordinator == old.Store.Coordinator || taken.Epoch <= old.Epoch {
		t.Errorf("after epoch %d of %+v comes epoch %d of %+v", old.Epoch, *old.Store, taken.Epoch, *taken.Store)
	}

	small := []request{{"a small request", "/v1/completions",
		map[string]any{"prompt": reqs[0].body["prompt"], "max_tokens": 20, "ignore_eos": true, "temperature": 0}}}
	right := at.send(t, small, 1)
	var late []string // jobs
	var answers, refused atomic.Int64
	awake := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for over := false; !over; {
				select {
				case <-awake:
					over = true // once more, after it has ended
				default:
				}
				a, err := at.try(context.Background(), "POST", small[0].path, small[0].body)
				if err != nil || a.status != 200 {
					refused.Add(1)
					continue
				}
				answers.Add(1)
				if got := canonical(string(a.body)); got != right[0] {
					t.Errorf("while the old coordinator woke, a request was answered %s", firstDifference(right[0], got))
				}
			}
		})
	}
	clients.Go(func() {
		for over := false; !over; {
			select {
			case <-awake:
				over = true
			default:
			}
			id, err := at.submit(fmt.Sprintf("woke-%d", len(late)), small[0].body, time.Now().Add(requestLimit))
			if err != nil {
				t.Error(err)
				return
			}
			late = append(late, id)
		}
	})
	if err := syscall.Kill(first, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "the end of the one that woke", func() (bool, string) {
		now := c.coordinators("coordinator", "standby")
		return now[old.Store.Coordinator] != first, fmt.Sprintf("coordinators: %v", now)
	})
	close(awake)
	clients.Wait()
	t.Logf("while it woke: %d requests answered, %d refused, %d jobs accepted", answers.Load(), refused.Load(), len(late))
	if text := tail(c.head.err); !strings.Contains(text, "another coordinator has taken over: "+taken.Store.Coordinator) {
		t.Error("the resumed coordinator did not name its successor")
	}
	cut.wg.Wait()
	events := cut.got[0].events
	if n := len(events); n > 0 && strings.HasPrefix(events[n-1].data, `{"error":`) {
		events = events[:n-1] // it may report that it was cut
	}
	for i, e := range events {
		if w := whole.got[0].events; i >= len(w) || canonical(e.data) != canonical(w[i].data) {
			t.Errorf("event %d of the stream that was cut is %s", i, e.data)
			break
		}
	}
	p.check(0, "frozen", reqs, want, jobs)
	p.check(0, "woke", slices.Repeat(small, len(late)), slices.Repeat(right, len(late)), late)
	p.copies(0) // the first coordinator has its copy again
	after, _ := p.state(0)
	if after.Store.Term != taken.Store.Term || after.Store.Coordinator != taken.Store.Coordinator || after.Epoch != taken.Epoch {
		t.Errorf("when it woke the cluster changed from epoch %d, %+v to %d, %+v", taken.Epoch, *taken.Store, after.Epoch, *after.Store)
	}
}

// TestUpStandbyWithoutItsStore: two of the three disks are lost, so that neither coordinator of
// `shoal up --standby` can get the lease. Their address reports that within seconds.
func TestUpStandbyWithoutItsStore(t *testing.T) {
	testlevel.NeedLong(t)
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("forms a replicated store, some ten seconds")
	}
	parallel(t)
	dir, listen := t.TempDir(), freePort(t)
	args := []string{"up", "--nodes", "2", "--threads", "1", "--standby", "--data-dir", dir, "--listen", listen}
	first := spawn(t, built.shoal(t, ""), "up", nil, args...)
	at := &processCluster{t: t, httpClient: newHTTPClient(t, "http://"+listen, "")}
	p := &pair{t: t, at: [2]*processCluster{at, at}}
	p.serves(0, startLimit)
	p.copies(0)
	first.kill(t)
	testutil.Eventually(t, patience, "the processes are gone", func() (bool, string) {
		left := 0
		for _, line := range built.running() {
			if strings.Contains(line, dir) {
				left++
			}
		}
		return left == 0, fmt.Sprint(left)
	})
	for _, lost := range []string{"standby", "node-0"} {
		if err := os.RemoveAll(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	spawn(t, built.shoal(t, ""), "again", nil, args...)
	ask := func(path string) (answer, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return at.try(ctx, "GET", path, nil)
	}
	testutil.Eventually(t, startLimit, "an answer without a store", func() (bool, string) {
		a, err := ask("/health")
		return err == nil && a.status == 503 && strings.Contains(string(a.body), "no coordinator is active"),
			fmt.Sprint(err, a.status, string(a.body))
	})
	for _, path := range []string{"/health", "/ready", "/v1/models"} {
		a, err := ask(path) // from either of them
		text := string(a.body)
		if err != nil || a.status != 503 || !strings.Contains(text, "needs 2 of its 3 replicas; here: coordinator; away:") &&
			!strings.Contains(text, "has not asked this process to keep a copy") {
			t.Errorf("%s: %d %s, %v", path, a.status, a.body, err)
		}
	}
	if _, stderr, code := command(t, patience, nil, "status", "--server", listen); code != 3 ||
		!strings.Contains(stderr, "no coordinator is active") {
		t.Errorf("shoal status: status %d: %s", code, stderr)
	}
}
