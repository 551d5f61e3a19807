package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// diskJobs returns jobs long enough to be interrupted.
func diskJobs(n, tokens int) (reqs []request) {
	r := rand.New(rand.NewPCG(21, 22))
	for i := range n {
		reqs = append(reqs, request{fmt.Sprintf("job %d", i), "/v1/completions", map[string]any{"prompt": ids(r, 20+10*i), "max_tokens": tokens,
			"ignore_eos": true, "logprobs": 2, "temperature": float64(i%2) * 0.8, "seed": i}})
	}
	return reqs
}

// TestChaosTornLog truncates the journal of a killed coordinator inside a record, like a disk that
// wrote half of it. The coordinator starts and no accepted job is lost. The lost part is computed again
// with the same bits: every event that a client received keeps its index and content.
func TestChaosTornLog(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	p := startProcesses(t, 2)
	reqs := diskJobs(4, 150)
	want := p.send(t, reqs, len(reqs))
	until := time.Now().Add(requestLimit)
	jobs, seen := make([]string, len(reqs)), make([][]string, len(reqs))
	for i, r := range reqs {
		id, err := p.submit(r.name, r.body, until)
		if err != nil {
			t.Fatal(err)
		}
		jobs[i] = id
	}
	for i, id := range jobs { // all jobs are accepted; the newest records are tokens
		if _, err := p.attach(id, 0, until, func(e jobEvent) bool {
			seen[i] = append(seen[i], e.line)
			return len(seen[i]) < 40
		}); err != nil {
			t.Fatal(err)
		}
	}
	p.coordinator.kill(t)
	var last string
	_ = filepath.WalkDir(p.data, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".blk") && strings.Contains(path, "SHOAL_JOBS") {
			last = path // in lexical order; there are fewer than ten
		}
		return nil
	})
	info, err := os.Stat(last)
	if err != nil || info.Size() < 1000 {
		t.Fatalf("no journal to tear in %s: %v", p.data, err)
	}
	if err := os.Truncate(last, info.Size()-100); err != nil { // a record has at least 92 bytes plus JetStream's header
		t.Fatal(err)
	}
	p.startCoordinator()
	p.ready(startLimit)
	for i, id := range jobs {
		events, _, err := p.follow(id, until)
		k := p.lookAt(id)
		if err != nil || len(k) != 1 || k[0].result != strings.TrimSpace(want[i]) {
			t.Errorf("%s: %v, %+v, want %s", reqs[i].name, err, k, want[i])
		}
		if len(events) < len(seen[i]) || strings.Join(events[:len(seen[i])], "\n") != strings.Join(seen[i], "\n") {
			t.Errorf("%s: its events are not those that were streamed before", reqs[i].name)
		}
	}
	var list struct{ Damage []string }
	p.getJSON("/v1/jobs", &list)
	t.Logf("%d bytes cut off %s; reported damage: %q", 100, filepath.Base(last), list.Damage)
}

// TestChaosDiskFull fills the coordinator's disk while jobs run. Nothing unwritten is acknowledged,
// stored jobs stay readable, and once there is space every accepted job completes.
func TestChaosDiskFull(t *testing.T) {
	testlevel.NeedFull(t)
	parallel(t)
	data := smallDisk(t, 24<<20)
	p := startProcessesAt(t, data, 2)
	reqs := diskJobs(3, 200)
	want := p.send(t, reqs, len(reqs))
	until := time.Now().Add(requestLimit)
	var jobs []string
	for _, r := range reqs {
		id, err := p.submit(r.name, r.body, until)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, id)
	}
	ballast := fill(t, data)
	acknowledged, refused := 0, answer{}
	for i := range 40 { // the open block may have room for a few
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		a, err := p.try(ctx, "POST", "/v1/jobs",
			map[string]any{"prompt": ids(rand.New(rand.NewPCG(1, uint64(i))), 2000), "max_tokens": 3, "ignore_eos": true})
		cancel()
		if err != nil {
			t.Fatalf("the coordinator died of a full disk: %v", err)
		}
		if a.status == 202 {
			var j jobState
			if err := json.Unmarshal(a.body, &j); err != nil {
				t.Fatal(err)
			}
			acknowledged++
			jobs = append(jobs, j.ID)
			continue
		}
		if refused = a; a.status >= 400 {
			break
		}
	}
	t.Logf("%d jobs more were accepted, then %d %s", acknowledged, refused.status, refused.body)
	if refused.status != 503 || !strings.Contains(string(refused.body), "store_") {
		t.Errorf("on a full disk a job gets %d %s, want 503 with a reason", refused.status, refused.body)
	}
	for _, id := range jobs {
		if k := p.lookAt(id); len(k) != 1 || k[0].missing {
			t.Errorf("on a full disk job %s is %+v", id, k)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for i, id := range jobs {
		_, _, err := p.follow(id, until)
		if k := p.lookAt(id); err != nil || len(k) != 1 || k[0].state != "completed" ||
			i < len(want) && k[0].result != strings.TrimSpace(want[i]) {
			t.Errorf("with space again job %s: %v, %+v", id, err, k)
		}
	}
}

// TestDiskFullServes: the disk of the jobs is full, and then a node dies. Plain requests need no
// disk and continue on the remaining nodes. Once there is space, jobs are accepted and complete
// without a restart.
func TestDiskFullServes(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	data := smallDisk(t, 3<<20)
	p := startProcessesAt(t, data, 3)
	reqs := streaming(2, 30)
	sys := &system{httpClient: p.httpClient, t: t}
	want, _ := sys.undisturbed(t, reqs)
	ballast := fill(t, data)
	job := map[string]any{"prompt": ids(rand.New(rand.NewPCG(1, 1)), 200), "max_tokens": 3, "ignore_eos": true}
	testutil.Eventually(t, patience, "a job is refused", func() (bool, string) {
		a := p.call("POST", "/v1/jobs", job)
		return a.status == 503, fmt.Sprint(a.status)
	})
	if a := p.call("POST", "/v1/jobs", job); !strings.Contains(string(a.body), "full or failing") ||
		strings.Contains(string(a.body), "three") {
		t.Errorf("the error of a store of one copy is %s", a.body)
	}
	// A node dies while nothing can be recorded.
	began := time.Now()
	flow := sys.open(reqs)
	flow.reach(t, 10)
	p.nodes[1].kill(t)
	got, stall := flow.wait(t)
	same(t, "a node died while the disk was full", reqs, want, got)
	t.Logf("streams ended %.1f s after they began, the longest silence was %.2f s", time.Since(began).Seconds(), stall.Seconds())
	if stall > recoverLimit {
		t.Errorf("a stream was silent for %v", stall)
	}
	if a := p.call("GET", "/health", nil); a.status != 200 || !strings.Contains(string(a.body), "degraded") ||
		!strings.Contains(string(a.body), "was not recorded") {
		t.Errorf("/health on a full disk: status %d: %s", a.status, a.body)
	}
	again, _ := sys.open(reqs).wait(t)
	same(t, "requests on a full disk", reqs, want, again)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	until := time.Now().Add(requestLimit)
	id, err := p.submit("with space", job, until)
	if err != nil {
		t.Fatalf("with space again no job is accepted: %v", err)
	}
	if _, _, err := p.follow(id, until); err != nil {
		t.Errorf("with space again a job does not end: %v", err)
	}
	t.Logf("a job ended %.1f s after there was space", time.Since(began).Seconds())
	testutil.Eventually(t, patience, "/health is well again", func() (bool, string) {
		a := p.call("GET", "/health", nil)
		return strings.Contains(string(a.body), `"ok"`), string(a.body)
	})
	p.startNode(1)
	sys.waitNodes(3, recoverLimit)
	// A restarted coordinator continues above the epochs that were decided meanwhile.
	before := sys.state().Epoch
	p.coordinator.kill(t)
	p.startCoordinator()
	p.ready(startLimit)
	if after := sys.state().Epoch; after <= before {
		t.Errorf("epoch %d before the coordinator was killed, %d after", before, after)
	}
}

// fill fills the file system of a folder. Removing the returned file frees the space.
func fill(t *testing.T, dir string) string {
	t.Helper()
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for block, written := make([]byte, 4096), 0; err == nil; written += len(block) {
		if written > 64<<20 { // this is the machine's disk, not the test's
			t.Fatalf("%s is not a small disk any more", dir)
		}
		_, err = f.Write(block)
	}
	f.Close()
	t.Logf("the disk is full: %v", err)
	return ballast
}

// TestTwoFullDisksOfThree: the disks of two of the three store processes are full. Requests
// continue, jobs are refused with a reason, and /health reports it. Once there is space, jobs run
// and complete without a restart, and no accepted job is lost.
func TestTwoFullDisksOfThree(t *testing.T) {
	testlevel.NeedFull(t)
	parallel(t)
	disks := []string{smallDisk(t, 8<<20), smallDisk(t, 8<<20)}
	k := newKept(t, "n0,n1", 3, disks...)
	k.copies(0)
	p := k.at[0]
	reqs := streaming(2, 30)
	want, _ := p.undisturbed(t, reqs)
	work := []request{{"a job", "/v1/completions",
		map[string]any{"prompt": []int{100, 200}, "max_tokens": 20, "ignore_eos": true, "temperature": 0}}}
	results := p.send(t, work, 1)
	before := k.jobs(0, "before", work)
	k.check(0, "before", work, results, before)

	var ballast []string
	for _, d := range disks {
		ballast = append(ballast, fill(t, d))
	}
	long := map[string]any{"prompt": ids(rand.New(rand.NewPCG(1, 1)), 2000), "max_tokens": 3, "ignore_eos": true}
	accepted := 0
	testutil.Eventually(t, patience, "a job is refused", func() (bool, string) {
		a := p.call("POST", "/v1/jobs", long)
		if a.status == 202 {
			accepted++
		}
		return a.status == 503 && strings.Contains(string(a.body), "store_unavailable"), fmt.Sprint(a.status, string(a.body))
	})
	got, stall := p.open(reqs).wait(t)
	same(t, "with two full disks", reqs, want, got)
	t.Logf("%d jobs were accepted yet; the longest silence of a stream was %.2f s", accepted, stall.Seconds())
	testutil.Eventually(t, patience, "/health reports the full disks", func() (bool, string) {
		a := p.call("GET", "/health", nil)
		return a.status == 200 && strings.Contains(string(a.body), "degraded"), fmt.Sprint(a.status, string(a.body))
	})

	for _, b := range ballast {
		if err := os.Remove(b); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	after := k.jobs(0, "after", work)
	k.check(0, "after", work, results, after)
	t.Logf("a job ended %.1f s after there was space", time.Since(began).Seconds())
	k.check(0, "before", work, results, before)
	k.copies(0)
	testutil.Eventually(t, patience, "every accepted job ends", func() (bool, string) {
		var list struct{ Data []jobState }
		p.getJSON("/v1/jobs?limit=100", &list)
		done := 0
		for _, j := range list.Data {
			if j.State == "completed" {
				done++
			}
		}
		return done == len(list.Data) && done >= accepted+2,
			fmt.Sprintf("%d of %d, %d were accepted on full disks", done, len(list.Data), accepted)
	})
	testutil.Eventually(t, patience, "/health is well again", func() (bool, string) {
		a := p.call("GET", "/health", nil)
		return strings.Contains(string(a.body), `"ok"`), string(a.body)
	})
}
