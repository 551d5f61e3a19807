package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// networked is a cluster on a simulated wire: two coordinators, of which one is on standby, and four
// nodes in two racks. c0, n0 and n1 are in the first rack; c1, n2 and n3 in the second.
type networked struct {
	*pair
	w      *fakeWire
	heads  [2]*port
	nodes  []*port
	procs  []*process
	flags  []string // of every process
	dir    string   // data directory of n0, which keeps a copy of the store
	active int      // coordinator that serves
	reqs   []request
	want   []string
}

func newNetworked(t *testing.T, kind wireKind) *networked {
	x := &networked{pair: &pair{t: t, dirs: [2]string{t.TempDir(), t.TempDir()}}, w: newWireOf(t, kind),
		nodes: make([]*port, 4), procs: make([]*process, 4), dir: t.TempDir()}
	x.members = "c1,n0"
	if !kind.keyed {
		x.flags = []string{"--insecure"}
	}
	x.more = append([]string{"--sync-deadline", "2s", "--step-deadline", "5s"}, x.flags...)
	for i := range x.heads {
		x.heads[i] = x.w.plug()
		x.ports[i] = x.heads[i]
		x.gossip[i] = x.at7070(fmt.Sprintf("c%d", i), x.heads[i])
		client := newHTTPClient(t, "http://127.0.0.1:8080", "")
		dialFrom(client, x.heads[i])
		x.at[i] = &processCluster{t: t, httpClient: client}
	}
	for i := range x.nodes {
		x.nodes[i] = x.w.plug()
	}
	x.rename()
	x.pair.start(0, false)
	x.runs[0].line(t, x.runs[0].err, listens, startLimit)
	for i := range x.nodes {
		x.join(i)
	}
	x.serves(0, startLimit)
	x.pair.start(1, true)
	x.copies(0)
	x.reqs = streaming(8, 24)
	x.want, _ = x.sys(t).undisturbed(t, x.reqs)
	return x
}

// rename sets the names of all processes.
func (x *networked) rename() {
	if !x.w.kind.named {
		return
	}
	names := map[string]*port{"c0": x.heads[0], "c1": x.heads[1]}
	for i, p := range x.nodes {
		names[fmt.Sprintf("n%d", i)] = p
	}
	x.w.setNames(names)
}

// at7070 returns the gossip address of a process.
func (x *networked) at7070(id string, at *port) string {
	if x.w.kind.named {
		return id + ":7070"
	}
	return at.addr("7070")
}

// join starts the process of a node.
func (x *networked) join(i int) {
	id, at := fmt.Sprintf("n%d", i), x.nodes[i]
	args := append([]string{"node", "--id", id, "--join", strings.Join(x.gossip[:], ","), "--threads", "1", "--bind", x.at7070(id, at)},
		x.flags...)
	if i == 0 { // a member of the store
		args = append(args, "--data-dir", x.dir)
	}
	x.procs[i] = spawnIn(x.t, at, built.shoal(x.t, ""), id, nil, args...)
}

// sys is the cluster by the API of its serving coordinator.
func (x *networked) sys(t *testing.T) *system {
	c := *x.at[x.active].httpClient
	c.t = t
	return &system{httpClient: &c, t: t, head: x.runs[x.active]}
}

func (x *networked) all() []*port { return append(slices.Clone(x.nodes), x.heads[:]...) }

// racks are the ports of both racks. The serving coordinator is in the first.
func (x *networked) racks() (first, second []*port) {
	first, second = []*port{x.heads[x.active]}, []*port{x.heads[1-x.active]}
	return append(first, x.nodes[:2]...), append(second, x.nodes[2:]...)
}

// everywhere changes the links of all pairs.
func (x *networked) everywhere(change func(*rule)) { x.w.between(x.all(), x.all(), false, change) }

// whole waits until four nodes serve one coordinator and the store has three copies. While the store elects
// a leader, the standby may take the lease. Then the former coordinator ends with that reason, and is
// started again.
func (x *networked) whole(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, recoverLimit, "four nodes, a coordinator and a standby", func() (bool, string) {
		for i, p := range x.runs {
			select {
			case <-p.done:
				if !strings.Contains(tail(p.err), "another coordinator has taken over") {
					t.Fatalf("c%d ended (%v)", i, p.code)
				}
				x.active = 1 - i
				x.pair.start(i, true)
				t.Logf("c%d has taken over", x.active)
			default:
			}
		}
		s, ok := x.state(x.active)
		if !ok || s.Store == nil {
			return false, "no answer"
		}
		ready := 0
		for _, n := range s.Nodes {
			if n.State == "ready" {
				ready++
			}
		}
		return ready == 4 && s.Store.Replicas == 3, fmt.Sprintf("%d nodes, %+v", ready, *s.Store)
	})
	x.serves(x.active, recoverLimit)
}

// networkFault is a fault of the network that lasts for a whole story.
type networkFault struct {
	name string
	do   func(x *networked)
}

var (
	loss1   = networkFault{"loss of 1 %", func(x *networked) { x.everywhere(func(r *rule) { r.Loss = 0.01 }) }}
	loss5   = networkFault{"loss of 5 %", func(x *networked) { x.everywhere(func(r *rule) { r.Loss = 0.05 }) }}
	reorder = networkFault{"reordering", func(x *networked) {
		x.everywhere(func(r *rule) { r.Delay, r.Reorder = 200*time.Microsecond, 0.05 })
	}}
	jitter  = networkFault{"jitter", func(x *networked) { x.everywhere(func(r *rule) { r.Jitter = 8 * time.Millisecond }) }}
	doubled = networkFault{"duplicates", func(x *networked) { x.everywhere(func(r *rule) { r.Duplicate = 0.05 }) }}
	slow    = networkFault{"a slow link", func(x *networked) { // a hundredth of 1 Gbit/s, and a hundred times the delay of a rack
		x.w.between(x.nodes[1:2], x.all(), true, func(r *rule) { r.Rate, r.Delay = 1e9/8/100, 5*time.Millisecond })
	}}
)

// networkStory injects the faults. It ends with a whole cluster.
type networkStory struct {
	name string
	run  func(t *testing.T, x *networked)
}

var (
	decode = networkStory{"streams", func(t *testing.T, x *networked) {
		got, stall := x.sys(t).open(x.reqs).wait(t)
		same(t, "streams", x.reqs, x.want, got)
		t.Logf("longest silence %.2f s", stall.Seconds())
	}}
	killed = networkStory{"kill -9 of a node", func(t *testing.T, x *networked) {
		surviveFault(t, x.sys(t), "kill -9 n3", x.reqs, x.want, func() { x.procs[3].kill(t) })
		x.sys(t).waitNodes(3, recoverLimit)
		x.join(3)
	}}
	frozen = networkStory{"a frozen node is fenced", func(t *testing.T, x *networked) {
		surviveFault(t, x.sys(t), "SIGSTOP n2", x.reqs, x.want, func() {
			before := x.sys(t).state().Recoveries
			_ = x.procs[2].cmd.Process.Signal(syscall.SIGSTOP)
			testutil.Eventually(t, recoverLimit, "the placement with a frozen node is withdrawn", func() (bool, string) {
				return x.sys(t).state().Recoveries > before, "it serves"
			})
		})
		_ = x.procs[2].cmd.Process.Signal(syscall.SIGCONT)
	}}
	isolated = networkStory{"a node is cut off", func(t *testing.T, x *networked) {
		others := slices.DeleteFunc(x.all(), func(p *port) bool { return p == x.nodes[1] })
		surviveFault(t, x.sys(t), "n1 is cut off", x.reqs, x.want, func() { x.w.between(x.nodes[1:2], others, true, cut) })
		x.sys(t).waitNodes(3, recoverLimit)
	}}
	deaf = networkStory{"a node's packets are lost", func(t *testing.T, x *networked) {
		others := slices.DeleteFunc(x.all(), func(p *port) bool { return p == x.nodes[2] })
		surviveFault(t, x.sys(t), "n2's packets are lost", x.reqs, x.want, func() { x.w.between(x.nodes[2:3], others, false, cut) })
		x.sys(t).waitNodes(3, recoverLimit)
	}}
	apart = networkStory{"the racks are separated", func(t *testing.T, x *networked) {
		first, second := x.racks()
		surviveFault(t, x.sys(t), "the racks are separated", x.reqs, x.want, func() { x.w.between(first, second, true, cut) })
		x.sys(t).waitNodes(2, recoverLimit)
	}}
	takeover = networkStory{"the coordinator is killed, the standby takes over", func(t *testing.T, x *networked) {
		old := x.active
		x.copies(old)
		ids := x.jobs(old, t.Name(), x.jobRequests())
		x.begun(old, ids)
		x.runs[old].kill(t)
		x.active = 1 - old
		t.Logf("the standby serves after %.1f s", x.serves(x.active, recoverLimit).Seconds())
		x.checkJobs(t, ids)
		x.pair.start(old, true)
		x.copies(x.active)
	}}
	moved = networkStory{"two nodes return with other addresses", func(t *testing.T, x *networked) {
		surviveFault(t, x.sys(t), "n0 and n3 move", x.reqs, x.want, func() {
			for _, i := range []int{0, 3} { // n0 has a copy of the store, whose address the others have recorded
				x.procs[i].kill(t)
				x.nodes[i] = x.w.plug()
			}
			x.rename()
		})
		x.sys(t).waitNodes(2, recoverLimit)
		x.join(0)
		x.join(3)
		x.whole(t)
		ids := x.jobs(x.active, t.Name(), x.jobRequests())
		x.checkJobs(t, ids)
	}}
	jobsApart = networkStory{"jobs, while the racks are separated", func(t *testing.T, x *networked) {
		x.copies(x.active)
		ids := x.jobs(x.active, t.Name(), x.jobRequests())
		x.begun(x.active, ids)
		first, second := x.racks() // the second has only one of three copies of the store
		x.w.between(first, second, true, cut)
		x.sys(t).waitNodes(2, recoverLimit)
		ids = append(ids, x.jobs(x.active, t.Name()+" apart", x.jobRequests())...)
		x.w.heal()
		x.whole(t)
		x.checkJobs(t, ids)
	}}
)

// jobRequests are the requests of jobs.
func (x *networked) jobRequests() (out []request) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 3 {
		out = append(out, request{fmt.Sprintf("job %d", i), "/v1/completions", map[string]any{"prompt": ids(r, 20+30*i),
			"max_tokens": 60, "ignore_eos": true, "temperature": float64(i%2) * 0.8, "seed": i, "logprobs": 2}})
	}
	return out
}

// checkJobs compares the results of jobs with direct answers. ids has the jobs of jobRequests, once or
// several times.
func (x *networked) checkJobs(t *testing.T, ids []string) {
	t.Helper()
	reqs := x.jobRequests()
	want := x.sys(t).send(t, reqs, len(reqs))
	for n, id := range ids {
		events, _, err := x.at[x.active].follow(id, time.Now().Add(requestLimit))
		var j jobState
		x.at[x.active].getJSON("/v1/jobs/"+id, &j)
		if r := n % len(reqs); err != nil || j.State != "completed" ||
			canonical(string(j.Result)) != strings.TrimSpace(want[r]) || len(events) != j.Events {
			t.Errorf("%s is %s after %d events (%v) and differs from the direct answer %s", reqs[r].name,
				j.State, len(events), err, firstDifference(strings.TrimSpace(want[r]), canonical(string(j.Result))))
		}
	}
}

// networkRow is a story with a fault of the network. The rows with always run in CI.
type networkRow struct {
	fault  networkFault
	story  networkStory
	always bool
}

// networkRows are the rows of TestChaosNetwork.
var networkRows = []networkRow{
	{loss1, killed, true},
	{loss1, decode, false},
	{loss1, jobsApart, false},
	{loss1, takeover, false},
	{loss5, decode, false},
	{loss5, isolated, false},
	{reorder, frozen, false},
	{reorder, takeover, false},
	{jitter, killed, false},
	{jitter, deaf, false},
	{doubled, isolated, false},
	{doubled, decode, false},
	{slow, decode, false},
	{slow, killed, false},
	{networkFault{}, apart, true},
	{loss1, apart, false},
	{networkFault{}, deaf, false},
	{networkFault{}, jobsApart, false},
}

// addressRows are rows with IPv6 only, and with names in the place of addresses.
var addressRows = []networkRow{
	{loss1, killed, false},
	{jitter, takeover, false},
	{loss1, isolated, false},
}

// TestChaosNetwork runs each story with a fault of the network. Streams and jobs equal those of an
// undisturbed cluster, and four nodes serve after the fault.
func TestChaosNetwork(t *testing.T) {
	if os.Getenv("CI") != "true" {
		testlevel.NeedLong(t)
	}
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	runRows(t, wireKind{}, networkRows)
}

// TestChaosAddresses runs stories on a network with IPv6 only, and with names in the place of addresses, of which some
// change.
func TestChaosAddresses(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	for _, kind := range []wireKind{ipv6Wire, namedWire} {
		rows := addressRows
		if kind.named {
			rows = append(slices.Clone(rows), networkRow{networkFault{}, moved, false})
		}
		t.Run(kind.name, func(t *testing.T) { runRows(t, kind, rows) })
	}
}

func runRows(t *testing.T, kind wireKind, rows []networkRow) {
	x := newNetworked(t, kind)
	for _, row := range rows {
		if !row.always && !testlevel.Long() {
			continue
		}
		name := row.story.name
		if row.fault.do != nil {
			name = row.fault.name + ", " + name
		}
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			if row.fault.do != nil {
				row.fault.do(x)
			}
			row.story.run(t, x)
			x.w.heal()
			x.whole(t)
			got, _ := x.sys(t).open(x.reqs).wait(t)
			same(t, "on a good network again", x.reqs, x.want, got)
			s := x.sys(t).state()
			t.Logf("%.1f s, epoch %d, fences %v", time.Since(began).Seconds(), s.Epoch, s.Fences)
		})
		if t.Failed() {
			return // the cluster may be in no state for the next row
		}
	}
}
