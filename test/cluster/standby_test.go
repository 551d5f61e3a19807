package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// pair is a cluster with an active and a standby coordinator, and a store with three copies: theirs
// and the first node's.
type pair struct {
	t      testing.TB
	dirs   [2]string
	gossip [2]string
	at     [2]*processCluster // clients of their APIs
	runs   [2]*process
	spawns int

	members string   // store members named at start
	ports   [2]*port // on a wire; nil: the machine's network
	more    []string // additional flags
}

func (p *pair) start(i int, standby bool) {
	args := []string{"coordinator", "--id", fmt.Sprintf("c%d", i), "--bind", p.gossip[i], "--listen",
		strings.TrimPrefix(p.at[i].base, "http://"), "--data-dir", p.dirs[i], "--nodes", "2", "--store-nodes", p.members}
	args = append(args, p.more...)
	if standby {
		args = append(args, "--standby", "--join", p.gossip[1-i])
	}
	p.spawns++
	p.runs[i] = spawnIn(p.t, p.ports[i], built.shoal(p.t, ""), fmt.Sprintf("c%d-%d", i, p.spawns), nil, args...)
}

// state returns a coordinator's /v1/cluster; ok is false while it does not coordinate.
func (p *pair) state(i int) (s wire.ClusterState, ok bool) {
	a, err := p.at[i].try(context.Background(), "GET", "/v1/cluster", nil)
	return s, err == nil && a.status == 200 && json.Unmarshal(a.body, &s) == nil
}

// copies waits until a coordinator reports three copies in sync.
func (p *pair) copies(i int) { p.replicas(i, 3) }

// replicas waits until a coordinator's store has this number of copies.
func (p *pair) replicas(i, want int) {
	p.t.Helper()
	testutil.Eventually(p.t, startLimit, fmt.Sprint(want, " copies of the store"), func() (bool, string) {
		s, ok := p.state(i)
		if !ok || s.Store == nil {
			return false, "no answer"
		}
		return s.Store.Replicas == want && (want < 3 || s.Store.Durability == "replicated"), fmt.Sprintf("%+v", *s.Store)
	})
}

// serves waits until a coordinator has a ready cluster.
func (p *pair) serves(i int, limit time.Duration) time.Duration {
	p.t.Helper()
	began := time.Now()
	testutil.Eventually(p.t, limit, fmt.Sprintf("c%d serves", i), func() (bool, string) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the coordinator may stop at this moment
		defer cancel()
		a, err := p.at[i].try(ctx, "GET", "/ready", nil)
		if err != nil {
			return false, err.Error()
		}
		return a.status == 200, string(a.body)
	})
	return time.Since(began)
}

// jobs submits the requests to a coordinator and returns the job ids.
func (p *pair) jobs(i int, what string, reqs []request) (out []string) {
	p.t.Helper()
	for n, r := range reqs {
		id, err := p.at[i].submit(fmt.Sprintf("%s-%d", what, n), r.body, time.Now().Add(patience))
		if err != nil {
			p.t.Fatal(err)
		}
		out = append(out, id)
	}
	return out
}

// check follows jobs at a coordinator until they end and compares the results with the undisturbed
// run.
func (p *pair) check(i int, what string, reqs []request, want, ids []string) {
	p.t.Helper()
	for n, id := range ids {
		events, _, err := p.at[i].follow(id, time.Now().Add(requestLimit))
		var j jobState
		p.at[i].getJSON("/v1/jobs/"+id, &j)
		if err != nil || j.State != "completed" || canonical(string(j.Result)) != strings.TrimSpace(want[n]) || len(events) != j.Events {
			p.t.Errorf("%s: %s is %s after %d events (%v) and differs from the undisturbed run %s", what, reqs[n].name, j.State, len(events), err,
				firstDifference(strings.TrimSpace(want[n]), canonical(string(j.Result))))
		}
		if again, err := p.at[i].submit(fmt.Sprintf("%s-%d", what, n), reqs[n].body, time.Now().Add(patience)); err != nil || again != id {
			p.t.Errorf("%s: the key of %s gives job %s now, %v", what, id, again, err)
		}
	}
}

// begun waits until every job has events, reads the first of each and disconnects.
func (p *pair) begun(i int, ids []string) (first []string) {
	p.t.Helper()
	testutil.Eventually(p.t, startLimit, "events of every job", func() (bool, string) {
		for _, id := range ids {
			var j jobState
			p.at[i].getJSON("/v1/jobs/"+id, &j)
			if j.Events < 5 {
				return false, fmt.Sprintf("%s has %d", id, j.Events)
			}
		}
		return true, ""
	})
	for _, id := range ids {
		ctx, cancel := context.WithCancel(context.Background())
		resp, err := p.at[i].do(ctx, "GET", "/v1/jobs/"+id+"/events?from=0", nil)
		if err != nil {
			p.t.Fatal(err)
		}
		b := make([]byte, 60)
		n, err := resp.Body.Read(b)
		if err != nil && n == 0 {
			p.t.Fatal(err)
		}
		first = append(first, string(b[:n]))
		resp.Body.Close()
		cancel()
	}
	return first
}

// TestStandby: a coordinator is frozen, then one is killed, each with running jobs. The other
// coordinator takes over and the jobs continue. The frozen coordinator changes nothing when it resumes,
// and exits with a reason.
func TestStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("takes over twice, some ten seconds each")
	}
	parallel(t)
	p := &pair{t: t, members: "c1,n0", dirs: [2]string{t.TempDir(), t.TempDir()}, gossip: [2]string{freePort(t), freePort(t)}}
	for i := range p.at {
		p.at[i] = &processCluster{t: t, httpClient: newHTTPClient(t, "http://"+freePort(t), "")}
	}
	p.start(0, false)
	p.runs[0].line(t, p.runs[0].err, listens, startLimit)
	join := strings.Join(p.gossip[:], ",")
	for i, more := range [][]string{{"--data-dir", t.TempDir()}, nil, nil} {
		spawn(t, built.shoal(t, ""), fmt.Sprintf("n%d", i),
			nil, append([]string{"node", "--join", join, "--id", fmt.Sprintf("n%d", i), "--threads", "1"}, more...)...)
	}
	p.serves(0, startLimit)
	if s, _ := p.state(0); s.Store == nil || s.Store.Durability != "single" {
		t.Errorf("with one data directory the store is %+v, want single", s.Store)
	}
	early := p.jobs(0, "early",
		[]request{{"a job of the first store", "", map[string]any{"prompt": []int{100, 200}, "max_tokens": 5, "ignore_eos": true}}})
	p.start(1, true)
	p.copies(0)
	if a, err := p.at[1].try(context.Background(), "GET", "/v1/models", nil); err != nil || a.status != 503 ||
		!strings.Contains(string(a.body), "standby") {
		t.Errorf("a standby answers %d %s, %v", a.status, a.body, err)
	}
	r := rand.New(rand.NewPCG(5, 5))
	var reqs []request
	for i := range 4 {
		b := map[string]any{"prompt": ids(r, 20+30*i), "max_tokens": 250, "ignore_eos": true, "temperature": float64(i%2) * 0.8, "seed": i}
		switch i {
		case 1:
			b["logprobs"], b["echo"] = 2, true // logs prompt scores too
		case 2:
			b["kv_policy"] = policies[1]
		}
		reqs = append(reqs, request{fmt.Sprintf("job %d", i), "/v1/completions", b})
	}
	if out, stderr, code := command(t, recoverLimit, nil, "drain", "n2", "--server", p.at[0].base); code != 0 {
		t.Fatalf("shoal drain: status %d: %s%s", code, out, stderr)
	}
	want := p.at[0].send(t, reqs, len(reqs))

	// c0 is frozen, c1 takes over, c0 resumes.
	jobs := p.jobs(0, "frozen", reqs)
	batch, input, text := p.batchOf(0, reqs)
	first := p.begun(0, jobs)
	if err := p.runs[0].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Logf("frozen: the standby serves after %.1f s", p.serves(1, recoverLimit).Seconds())
	before, _ := p.state(1)
	if err := p.runs[0].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if code := p.runs[0].end(t, patience); code != 1 || !strings.Contains(tail(p.runs[0].err), "another coordinator has taken over: c1") {
		t.Errorf("the resumed coordinator ended with status %d and did not name its successor", code)
	}
	p.check(1, "frozen", reqs, want, jobs)
	p.batchEnds(1, batch, input, text, want)
	p.staysDrained(1, "n2")
	again := p.begun(1, jobs)
	for i := range first {
		if !strings.HasPrefix(again[i], first[i][:min(len(first[i]), len(again[i]))]) {
			t.Errorf("%s: the first events were %q and are %q", reqs[i].name, first[i], again[i])
		}
	}
	after, ok := p.state(1)
	if !ok || failed(after) != failed(before) || full() && after.Epoch != before.Epoch ||
		after.Store.Term != before.Store.Term || after.Store.Coordinator != "c1" {
		t.Errorf("when it woke the cluster changed from epoch %d, %+v to %d, %+v", before.Epoch, *before.Store, after.Epoch, after.Store)
	}
	var j jobState
	p.at[1].getJSON("/v1/jobs/"+early[0], &j)
	if j.State != "completed" {
		t.Errorf("a job from before the store was replicated is %s", j.State)
	}

	// c1 is killed, and c0, now the standby, takes over.
	p.replicas(1, 2) // before the restart, so that c0's old copy is not counted
	p.start(0, true)
	p.copies(1)
	jobs = p.jobs(1, "killed", reqs)
	p.begun(1, jobs)
	p.runs[1].kill(t)
	t.Logf("killed: the standby serves after %.1f s", p.serves(0, recoverLimit).Seconds())
	p.check(0, "killed", reqs, want, jobs)
	p.batchEnds(0, batch, input, text, want)
	p.staysDrained(0, "n2")
	s, _ := p.state(0)
	if s.Epoch <= after.Epoch || s.Store.Term <= after.Store.Term || s.Store.Coordinator != "c0" {
		t.Errorf("after epoch %d and %+v comes epoch %d and %+v", after.Epoch, *after.Store, s.Epoch, s.Store)
	}
	p.replicas(0, 2)
}
