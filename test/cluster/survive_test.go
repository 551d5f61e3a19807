package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// scenario is the length of a run with jobs and kills: SHOAL_CHAOS (make chaos-jobs), or a short
// form. The seed is SEED.
type scenario struct {
	jobs, nodes int
	span        time.Duration
	long        bool
	seed        uint64
}

func theOrdeal(t testing.TB) scenario {
	o := scenario{jobs: 30, nodes: 3, span: 8 * time.Second, seed: 7}
	if v := os.Getenv("SHOAL_CHAOS"); v != "" {
		span, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("SHOAL_CHAOS: %v", err)
		}
		o = scenario{jobs: max(30, int(1000*span/(5*time.Minute))), nodes: 4, span: span, long: true, seed: 7}
	}
	if v := os.Getenv("SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		o.seed = seed
	}
	return o
}

// workload returns one request per job: greedy and seeded, all with scores, under the full cache
// and every kind of compression.
func (o scenario) workload(r *rand.Rand) (reqs []request) {
	for i := range o.jobs {
		b := map[string]any{"prompt": ids(r, 20+r.IntN(281)), "max_tokens": 8 + r.IntN(41), "ignore_eos": true, "logprobs": 2, "temperature": 0}
		if !o.long {
			b["max_tokens"] = 40 + r.IntN(60) // few jobs, which must overlap with the two kills
		}
		if i%2 == 1 {
			b["temperature"], b["top_p"], b["seed"] = 0.9, 0.95, i
		}
		what := policyOf(i)
		if what != "full" {
			b["kv_policy"] = what
		}
		if i%10 == 0 {
			b["n"] = 2
		}
		if i%4 == 1 { // their rejections depend on the output so far
			b["bad_words"], b["allowed_token_ids"] = []string{"e", "th", " a", "ing", "in g"}, firstIDs(300)
		}
		reqs = append(reqs, request{fmt.Sprintf("job %d (%s)", i, what), "/v1/completions", b})
	}
	return reqs
}

// fault is one injected fault.
type fault struct {
	what     string
	at       time.Time
	detected time.Duration // until the cluster reported it; 0: unknown
}

// injectFault kills the scheduled process, waits a moment, and restarts it.
func (p *processCluster) injectFault(r *rand.Rand, what int) fault {
	if what == 0 {
		b := fault{what: "coordinator", at: time.Now()}
		p.coordinator.kill(p.t)
		time.Sleep(time.Duration(r.IntN(1200)) * time.Millisecond)
		p.startCoordinator()
		return b
	}
	victims := r.Perm(len(p.nodes))[:what]
	before := p.look()
	b := fault{what: fmt.Sprintf("%d of %d nodes", what, len(p.nodes)), at: time.Now()}
	was := false
	for _, i := range victims {
		p.nodes[i].kill(p.t)
		was = was || stateOf(before, fmt.Sprintf("n%d", i)) == "ready"
	}
	back := b.at.Add(time.Duration(r.IntN(1200)) * time.Millisecond)
	for was && time.Since(b.at) < 5*time.Second {
		if c := p.look(); c.Recoveries > before.Recoveries || c.Epoch > before.Epoch {
			b.detected = time.Since(b.at)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(time.Until(back))
	for _, i := range victims {
		p.startNode(i)
	}
	return b
}

// look returns /v1/cluster, empty if there is no answer.
func (h *httpClient) look() (c wire.ClusterState) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if a, err := h.try(ctx, "GET", "/v1/cluster", nil); err == nil {
		_ = json.Unmarshal(a.body, &c)
	}
	return c
}

func stateOf(c wire.ClusterState, id string) string {
	for _, n := range c.Nodes {
		if n.ID == id {
			return n.State
		}
	}
	return ""
}

// runClient is a client of one job. It submits the job, sometimes twice, follows its events,
// sometimes with reconnects to an earlier index, and queries it.
func (p *processCluster) runClient(l *jobHistory, r *rand.Rand, body any, until time.Time) {
	key := "key of " + l.name
	id, err := p.submit(key, body, until)
	if err != nil {
		p.t.Error(err)
		return
	}
	l.ids = append(l.ids, id)
	again := r.IntN(4) == 0
	restless := r.IntN(3) == 0
	for have, over := 0, false; !over; {
		if time.Now().After(until) {
			p.t.Errorf("%s: no end of its events in time: %d so far", l.name, have)
			return
		}
		l.looks = append(l.looks, p.lookAt(id)...)
		v := visit{from: have}
		if have > 3 && r.IntN(2) == 0 {
			v.from = have - r.IntN(4)
		}
		leave := -1
		if restless {
			leave = 3 + r.IntN(20)
		}
		over, err = p.attach(id, v.from, until, func(e jobEvent) bool {
			if e.Object == "job.end" {
				v.end, v.count = e.State, e.Events
				return true
			}
			v.events = append(v.events, sight{e, time.Now()})
			leave--
			return leave != 0
		})
		if err != nil {
			p.t.Error(err)
			return
		}
		l.visits = append(l.visits, v)
		have = max(have, v.from+len(v.events))
		if again {
			again = false
			if id, err := p.submit(key, body, until); err != nil {
				p.t.Error(err)
			} else {
				l.ids = append(l.ids, id)
			}
		}
		if !over {
			time.Sleep(150 * time.Millisecond)
		}
	}
}

// lookAt returns an answer to GET /v1/jobs/{id}, none if there is no answer.
func (p *processCluster) lookAt(id string) []look {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, err := p.try(ctx, "GET", "/v1/jobs/"+id, nil)
	if err != nil || a.status >= 500 {
		return nil
	}
	if a.status == 404 {
		return []look{{missing: true}}
	}
	var j jobState
	if err := json.Unmarshal(a.body, &j); err != nil {
		p.t.Errorf("%s: %v", a.body, err)
		return nil
	}
	return []look{{state: j.State, attempt: j.Attempt, events: j.Events, result: canonical(string(j.Result))}}
}

// TestJobsSurviveEverything kills coordinator and nodes with kill -9 while jobs arrive and run,
// restarts them, and checks the answers that clients got and the records on disk (jobHistory.check).
// make chaos-jobs is the long form: 1000 jobs, 5 minutes.
func TestJobsSurviveEverything(t *testing.T) {
	parallel(t)
	o := theOrdeal(t)
	// Few at a time: the work that a coordinator's kill destroys is rebuilt before the next kill.
	p := newProcessCluster(t, t.TempDir(), o.nodes)
	p.headArgs = []string{"--max-sequences", "16"}
	p.start()
	r := rand.New(rand.NewPCG(o.seed, 7))
	reqs := o.workload(r)
	began := time.Now()
	want := p.send(t, reqs, 32)
	undisturbed := time.Since(began)
	before := p.calm(o.nodes)
	a := newAudit()
	t.Logf("seed %d: undisturbed run of %d requests in %.1f s", o.seed, len(reqs), undisturbed.Seconds())

	began = time.Now()
	until := began.Add(o.span + 4*undisturbed + 150*time.Second) // a slow machine gets more time
	stop := a.follow(p.look)
	lives := make([]*jobHistory, len(reqs))
	var clients sync.WaitGroup
	for i := range reqs {
		lives[i] = &jobHistory{name: reqs[i].name, want: want[i]}
		own := rand.New(rand.NewPCG(o.seed, uint64(1000+i)))
		clients.Add(1)
		go func() {
			defer clients.Done()
			time.Sleep(time.Duration(i) * o.span / time.Duration(len(reqs))) // jobs arrive while faults are injected
			p.runClient(lives[i], own, reqs[i].body, until)
		}()
	}
	var blows []fault
	if !o.long {
		time.Sleep(o.span / 4)
		blows = append(blows, p.injectFault(r, 1))
		time.Sleep(o.span / 4)
		blows = append(blows, p.injectFault(r, 0))
	}
	for o.long && time.Since(began) < o.span {
		time.Sleep(time.Duration(1000+r.IntN(4000)) * time.Millisecond)
		what := 1
		switch n := r.IntN(10); {
		case n < 4:
			what = 0
		case n == 9:
			what = 2
		}
		blows = append(blows, p.injectFault(r, what))
	}
	clients.Wait()
	took := time.Since(began)
	after := p.back(o.nodes, before)
	stop()
	a.returned(before, after)

	var list struct {
		Data   []jobState
		Counts map[string]int
		Damage []string
	}
	p.getJSON(fmt.Sprintf("/v1/jobs?limit=%d", min(1000, 2*len(reqs))), &list)
	if n := list.Counts["completed"]; n != len(reqs) || len(list.Data) < min(1000, n) {
		a.look("I1", 0, fmt.Sprintf("I1: %v, %d listed; want %d completed", list.Counts, len(list.Data), len(reqs)))
	}
	for _, d := range list.Damage {
		a.look("I9", 0, "I9: "+d)
	}
	a.look("I9", len(reqs))
	for _, l := range lives {
		for _, id := range l.ids[:min(1, len(l.ids))] {
			l.looks = append(l.looks, p.lookAt(id)...)
		}
	}
	p.coordinator.kill(t)
	onDisk := journals(t, p.data)
	for _, l := range lives {
		for _, id := range l.ids[:min(1, len(l.ids))] {
			l.journal = onDisk[id]
		}
	}
	judge(t, a, lives, blows, took)
	t.Logf("at least %d tokens were computed again, compared with %d in the undisturbed run; %.1f MB of tensors, %.1f undisturbed",
		int64(a.rows)-int64(before.StepRows), before.StepRows, float64(a.wire)/1e6, float64(before.WireBytes)/1e6)
}

// calm waits until nothing runs and the nodes have reported that.
func (h *httpClient) calm(nodes int) (c wire.ClusterState) {
	h.t.Helper()
	testutil.Eventually(h.t, recoverLimit, "an idle cluster", func() (bool, string) {
		c = h.look()
		ok := len(c.Nodes) == nodes && c.Running == 0 && c.Waiting == 0
		for _, n := range c.Nodes {
			ok = ok && n.State == "ready" && n.KVUsedBytes == 0 && n.Goroutines > 0
		}
		return ok, fmt.Sprintf("%+v", c)
	})
	return c
}

// back waits for calm and until no node holds more than before the faults, at most for patience. Nodes'
// figures are a second old. A server that did not notice the end of a connection keeps it, with its
// subscription, for at most a minute (docs/decisions/nats-mesh.md). A leak does not go away.
func (h *httpClient) back(nodes int, before wire.ClusterState) wire.ClusterState {
	h.t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		c, took := h.calm(nodes), time.Since(began)
		if wrong := kept(before, c); len(wrong) == 0 || took > patience {
			h.t.Logf("%d nodes hold no more than before after %.1f s, except %q", nodes, took.Seconds(), wrong)
			return c
		}
	}
}

// judge checks the histories and reports.
func judge(t *testing.T, a *audit, lives []*jobHistory, blows []fault, took time.Duration) {
	t.Helper()
	attempts, breaks := 0, 0
	for _, l := range lives {
		for _, name := range []string{"I1", "I2", "I3", "I4", "I8", "I10"} {
			a.look(name, 1)
		}
		a.look("I1", 0, l.check()...)
		breaks += max(0, len(l.visits)-1)
		if n := len(l.looks); n > 0 {
			attempts += l.looks[n-1].attempt
		}
	}
	a.report(t, "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10")
	kinds, moments, found := map[string]int{}, []time.Time{}, []time.Duration{}
	for _, b := range blows {
		kinds[b.what]++
		moments = append(moments, b.at)
		if b.detected > 0 {
			found = append(found, b.detected)
		}
	}
	t.Logf("%d faults, killed: %v", len(blows), kinds)
	t.Logf("%d jobs in %.1f s (%.1f a second), %d attempts, streams attached again %d times", len(lives), took.Seconds(),
		float64(len(lives))/took.Seconds(), attempts, breaks)
	t.Logf("loss of a node noticed: %s", spread(found))
	t.Logf("longest silence of a stream around a fault: %s", spread(silences(lives, moments)))
}

// spread formats the median and the maximum of durations.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "never"
	}
	d = slices.Sorted(slices.Values(d))
	return fmt.Sprintf("p50 %.2f s, max %.2f s (of %d)", d[len(d)/2].Seconds(), d[len(d)-1].Seconds(), len(d))
}
