package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	coord "github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// coordinator is the process with the batcher and the director: the real State and Authority,
// in shells that behave like cluster/core.go and internal/coordinator. Its two actors send each
// other messages, so a change in one reaches the other later.
type coordinator struct {
	*process
	w         *world
	place     int             // index among the competing coordinators
	lease     *topology.Lease // nil: no store
	term      uint64          // of the lease
	batcher   *batcher.State  // nil until it is elected, like authority
	authority *topology.Authority
	opened    uint32 // newest epoch that it sent to nodes
	began     time.Duration
	stepped   time.Duration // when the last step began
	deposed   bool          // and about to end

	hosts   map[string]host
	known   map[string]uint64 // id -> incarnation of nodes that are up
	serving *serving
	pace    pace
	asking  map[string]bool // nodes that are being described
	members []member        // gossip's view, by slot

	placed     uint32 // newest epoch that the batcher has received
	served     uint32 // newest epoch that the director served
	recovering bool
	tickets    map[string]*ticket
	entries    map[string]*entry // jobs; nil: not read yet
	jobs       []*entry          // in the order of their first records
	ids        map[uint64]string // sequence -> request, for the checker and the mutants
}

type host struct {
	node        *node
	incarnation uint64
	held        []*proto.Held
}

// serving is coordinator.Group.
type serving struct {
	place topology.Placement
	nodes []topology.Node
	hosts []*node
}

const modelHash = "toy"

func (w *world) newCoordinator(place int) *coordinator {
	return &coordinator{process: &process{name: fmt.Sprint("c", place+1), slot: -1 - place,
		incarnation: w.nextLife(), slow: 1, stirred: w.fresh()}, w: w, place: place, began: w.now,
		hosts: map[string]host{}, known: map[string]uint64{}, asking: map[string]bool{}, members: make([]member, maxNodes),
		tickets: map[string]*ticket{}, ids: map[uint64]string{}}
}

// coordinate makes it the active coordinator, after the newest recorded epoch.
func (c *coordinator) coordinate(after uint32) {
	w := c.w
	cfg := w.cfg.batcher
	if w.opt.Seed%2 == 0 {
		cfg.Guess = c.guess
	}
	state, err := batcher.New(cfg)
	if err != nil {
		panic(err)
	}
	c.batcher = state
	c.authority = topology.NewAuthority(topology.AuthorityConfig{Shape: shape, Mapping: topology.Gather, Nodes: w.cfg.waitFor,
		Settle: w.cfg.settle, Backoff: w.cfg.backoff, Quarantine: w.cfg.quarantine, Pause: w.cfg.pause,
		MaxNodes: w.cfg.most, ModelHash: modelHash, After: after, Leased: c.lease != nil})
	c.every(w.cfg.tick, func() { c.direct(c.authority.Tick(w.now - c.began)) })
	c.every(w.cfg.tick, func() { c.carryOut(c.batcher.Step(batcher.Tick{Now: c.millis()})) })
	c.every(w.cfg.compare, c.compare)
	w.coord = c
	w.resume()
}

func (c *coordinator) every(d time.Duration, do func()) {
	c.w.after(c.process, d, func() {
		do()
		c.every(d, do)
	})
}

func (c *coordinator) millis() int64 { return (c.w.now - c.began).Milliseconds() }

// post sends a message from one actor of this process to another, in order.
func (c *coordinator) post(do func()) { c.w.after(c.process, 20*time.Microsecond, do) }

// ---- the director

func (c *coordinator) nodeUp(n *node, described topology.Node) {
	c.hosts[described.ID] = host{node: n, incarnation: described.Incarnation}
	c.known[described.ID] = described.Incarnation
	c.w.logf("director: %s.%d is up", described.ID, described.Incarnation)
	c.direct(c.authority.Up(described))
}

func (c *coordinator) nodeDown(id string, incarnation uint64, why string) {
	if inc, ok := c.known[id]; ok && inc == incarnation {
		delete(c.known, id)
	}
	c.w.logf("director: %s.%d is down: %s", id, incarnation, why)
	c.direct(c.authority.Down(id, incarnation))
}

func (c *coordinator) answered(number uint32, id string, err error) {
	if err != nil {
		c.w.logf("director: %s did not follow into epoch %d: %v", id, number, err)
	}
	stale, was := number != c.authority.Epoch(), number
	if stale {
		c.w.cover[StaleAnswer]++
		if b := c.w.opt.Bug; b == NoFence || b == NoAuthorityFence {
			number = c.authority.Epoch()
		}
	}
	before, _ := c.authority.Phase()
	effects := c.authority.Answered(number, id, err)
	c.w.cover[LeftOut] += len(c.authority.Quarantined())
	if after, _ := c.authority.Phase(); stale && (after != before || len(effects) > 0) {
		c.w.watch.fail("I4: the answer of %s to epoch %d, which is over, moved the authority from %s to %s", id, was, before, after)
	}
	c.direct(effects)
}

func (c *coordinator) direct(effects []topology.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case topology.Withdraw:
			c.serving = nil
			c.w.logf("director: withdrawn: %s", e.Reason)
			reason := e.Reason
			c.post(func() {
				c.recovering = true
				c.w.cover[Replaced]++
				c.step(batcher.Unplaced{Reason: reason})
			})
		case topology.Record:
			if number := e.Placement.Epoch; c.lease == nil || c.w.opt.Bug == NoRecord {
				c.post(func() { c.direct(c.authority.Recorded(number)) })
				continue
			}
			incarnations := make([]uint64, len(e.Nodes))
			for i, n := range e.Nodes {
				incarnations[i] = n.Incarnation
			}
			c.lead(c.lease.Record(e.Placement, incarnations))
		case topology.LoadSlices:
			c.load(e)
		case topology.FormGroup:
			c.join(e)
		case topology.Serve:
			c.serve(e)
		case topology.Probe:
			c.probe(e.Node)
		case topology.RetireNode:
			h, number := c.hosts[e.Node.ID].node, e.Epoch
			c.repeat(h, 3, func(reply func(any, error)) {
				h.retire(number)
				reply(nil, nil)
			})
		}
	}
}

// repeat is an idempotent call that is retried while there is no answer.
func (c *coordinator) repeat(h *node, tries int, serve func(reply func(any, error))) {
	c.w.ask(c.process, h.process, c.w.cfg.retire, func(reply func(any, error)) {
		h.take(func() { serve(reply) })
	}, func(_ any, err error) {
		if errors.Is(err, errTimeout) && tries > 1 {
			c.repeat(h, tries-1, serve)
		}
	})
}

func (c *coordinator) load(e topology.LoadSlices) {
	var incarnations []uint64
	var peers []*process
	var names []string
	for _, n := range e.Nodes {
		h := c.hosts[n.ID]
		incarnations, peers = append(incarnations, n.Incarnation), append(peers, h.node.process)
		names = append(names, n.ID)
	}
	c.w.logf("director: loading epoch %d on %s", e.Placement.Epoch, strings.Join(names, " "))
	c.w.watch.opens(c, e.Placement.Epoch)
	l := &loading{c: c, e: e, rule: topology.LoadStall{Deadline: c.w.cfg.loadStall, All: c.w.cfg.loadAll}, began: c.w.now}
	c.w.after(c.process, c.w.cfg.loadStall/8, l.look)
	for rank, n := range e.Nodes {
		h := c.hosts[n.ID].node
		c.w.ask(c.process, h.process, c.w.cfg.load, func(reply func(any, error)) {
			h.take(func() {
				h.load(&epoch{of: c, place: e.Placement, incarnations: incarnations, rank: rank, peers: peers}, reply)
			})
		}, func(v any, err error) {
			c.post(func() {
				if held, ok := v.([]*proto.Held); ok && e.Placement.Epoch == c.authority.Epoch() {
					h := c.hosts[n.ID]
					h.held = held
					c.hosts[n.ID] = h
				}
				c.answered(e.Placement.Epoch, n.ID, err)
			})
		})
	}
}

func (c *coordinator) join(e topology.FormGroup) {
	for _, n := range e.Nodes {
		h := c.hosts[n.ID].node
		c.w.ask(c.process, h.process, c.w.cfg.join+c.w.cfg.join/4, func(reply func(any, error)) {
			h.take(func() { h.join(e.Epoch, reply) })
		}, func(_ any, err error) { c.post(func() { c.answered(e.Epoch, n.ID, err) }) })
	}
}

func (c *coordinator) serve(e topology.Serve) {
	g := &serving{place: e.Placement, nodes: e.Nodes}
	p := batcher.Placed{Epoch: e.Placement.Epoch, Disk: c.w.cfg.files, MaxThreadShift: len(e.Placement.Slices) % 3}
	for i, s := range e.Placement.Slices {
		g.hosts = append(g.hosts, c.hosts[e.Nodes[i].ID].node)
		p.Sockets = append(p.Sockets,
			batcher.Socket{ID: s.ID, Budget: e.Nodes[i].KVBudget, Heads: tensor.Span{Lo: s.KVHeads.Lo, Hi: s.KVHeads.Hi}})
	}
	for rank, n := range e.Nodes {
		for _, h := range c.hosts[n.ID].held {
			p.Held = append(p.Held,
				batcher.Held{Seq: h.Seq, Rank: rank, Prompt: int(h.Prompt), Tokens: int(h.Tokens), Staged: int(h.Staged), Replica: h.Replica})
		}
	}
	c.serving = g
	c.w.logf("director: epoch %d serves on %d sockets", p.Epoch, len(p.Sockets))
	c.w.watch.serves(c, p.Epoch)
	c.served = max(c.served, p.Epoch)
	c.post(func() {
		c.placed = max(c.placed, p.Epoch)
		c.step(p)
	})
}

// ---- the batcher

// ticket is a request in the batcher: of a stream, or of an attempt at a job.
type ticket struct {
	k   *client
	run *attempt // nil: a stream
	got int      // tokens sent to the stream or the attempt
}

func (c *coordinator) submit(spec batcher.Spec, t *ticket) *batcher.Reject {
	spec.Arrival = c.millis()
	c.carryOut(c.batcher.Step(batcher.Tick{Now: c.millis()}))
	if c.dead {
		return nil
	}
	c.tickets[spec.ID] = t
	e := c.batcher.Step(batcher.Submit{Spec: spec})
	if len(e.Rejects) > 0 {
		delete(c.tickets, spec.ID)
		c.carryOut(e)
		return &e.Rejects[0]
	}
	if t.run == nil {
		t.k.asked, t.k.at = true, c
	}
	c.carryOut(e)
	return nil
}

func (c *coordinator) step(in batcher.Input) {
	c.carryOut(c.batcher.Step(batcher.Tick{Now: c.millis()}))
	if !c.dead {
		c.carryOut(c.batcher.Step(in))
	}
}

// carryOut carries out the effects in order. The process may die between any two of them.
func (c *coordinator) carryOut(e batcher.Effects) {
	for _, f := range e.Faults {
		c.w.watch.fail("the batcher reports a broken invariant: %s %s: %s", f.Kind, f.ID, f.Message)
	}
	if c.dies(len(e.Emits) > 0, KilledBeforeEmit) {
		return
	}
	for _, s := range e.Scores {
		switch t := c.tickets[s.ID]; {
		case t == nil:
		case t.run != nil:
			t.run.score(s.Prompt)
		default:
			t.k.scores(s.Prompt)
		}
	}
	for _, m := range e.Emits {
		switch t := c.tickets[m.ID]; {
		case t == nil:
		case t.run != nil:
			t.run.emit(m)
		default:
			t.k.emit(m)
			t.got = t.k.got
		}
	}
	if c.dies(len(e.Finishes) > 0, KilledBeforeFinish) {
		return
	}
	for _, f := range e.Finishes {
		c.w.cover[AcceptedDraft] += int(f.Speculated.Accepted)
		t := c.tickets[f.ID]
		delete(c.tickets, f.ID)
		switch {
		case t == nil:
		case t.run != nil:
			c.w.cover[Preempted] += f.Preempted
			t.run.finish(f)
		default:
			t.k.finish(f)
		}
	}
	if c.dies(e.Start != nil || e.Broken != nil, KilledBeforeStart) {
		return
	}
	if b := e.Broken; b != nil {
		c.w.logf("batcher: step %d.%d broken: %s", b.Epoch, b.Step, b.Reason)
		c.w.cover[BrokenStep]++
		c.post(func() { c.direct(c.authority.Broken(b.Epoch, b.Reason)) })
	}
	if len(e.Release)+len(e.Evict) > 0 {
		c.release(plan.EncodeRelease(c.placed, e.Keep, e.Release, e.Evict))
	}
	for _, d := range e.Disk {
		c.bring(d)
	}
	if p := e.Start; p != nil {
		c.start(p)
	}
}

func (c *coordinator) release(r *proto.ReleaseRequest) {
	g := c.serving
	if g == nil || g.place.Epoch != r.Epoch {
		return
	}
	c.w.cover[ReleaseSent]++
	for _, h := range g.hosts {
		c.repeat(h, 3, func(reply func(any, error)) { h.release(r, reply) })
	}
}

// start is core.StartStep and stepper.run: all sockets are asked, all answers
// awaited; those that failed are probed.
func (c *coordinator) start(p *plan.Plan) {
	c.w.watch.starts(c, p)
	c.stepped = c.w.now
	p = c.mutate(p)
	g := c.serving
	if g == nil || g.place.Epoch != p.Epoch {
		c.post(func() { c.ended(p, nil, fmt.Errorf("cluster: epoch %d is over", p.Epoch)) })
		return
	}
	if c.w.opt.Trace {
		c.w.logf("batcher: step %s", describe(p))
	}
	f := &flight{c: c, g: g, p: p, replies: make([]*proto.StepReply, len(g.hosts)),
		errs: make([]error, len(g.hosts)), left: len(g.hosts), began: c.w.now,
		rule: topology.Stall{Deadline: c.w.cfg.stall * 5 / 8}}
	request := plan.Encode(p, c.w.cfg.step)
	for rank, h := range g.hosts {
		c.w.ask(c.process, h.process, c.w.cfg.step, func(reply func(any, error)) {
			h.take(func() { h.begin(request, reply) })
		}, func(v any, err error) { f.answered(rank, v, err) })
	}
	if len(g.hosts) > 1 {
		c.w.after(c.process, c.w.cfg.stall/8, f.look)
	}
}

func (c *coordinator) gathered(g *serving, p *plan.Plan, began time.Duration, replies []*proto.StepReply, errs []error) {
	var failed []string
	probes := 1
	finish := func() {
		if probes--; probes > 0 {
			return
		}
		if len(failed) > 0 {
			c.post(func() { c.ended(p, nil, errors.New(strings.Join(failed, "; "))) })
			return
		}
		c.keepPace(g, c.w.now-began, replies)
		c.post(func() { c.ended(p, replies, nil) })
	}
	for rank, err := range errs {
		if err == nil {
			continue
		}
		failed = append(failed, err.Error())
		probes++
		h, n := g.hosts[rank], g.nodes[rank]
		c.w.ask(c.process, h.process, c.w.cfg.probe, func(reply func(any, error)) {
			h.take(func() { reply(nil, nil) })
		}, func(_ any, err error) {
			if err != nil {
				c.w.cover[Suspected]++
				c.post(func() { c.nodeDown(n.ID, n.Incarnation, "it failed a step and does not answer") })
			}
			finish()
		})
	}
	finish()
}

// ended brings the answers of a step to the batcher.
func (c *coordinator) ended(p *plan.Plan, replies []*proto.StepReply, err error) {
	c.carryOut(c.batcher.Step(batcher.Tick{Now: c.millis()}))
	if c.dead {
		return
	}
	stale := c.w.watch.stale(c, p)
	var in batcher.Input = batcher.StepFailed{Epoch: p.Epoch, Step: p.Step, Reason: fmt.Sprint(err)}
	if err == nil {
		d := coord.StepDone(p, replies)
		d.Micros = (c.w.now - c.stepped).Microseconds()
		c.overlook(p, &d)
		in = d
	}
	e := c.batcher.Step(c.loosen(in))
	if stale {
		c.w.watch.without(p, &e)
	}
	c.carryOut(e)
}

// ready is core.Ready or recovering: requests are accepted.
func (c *coordinator) ready() bool { return c.serving != nil || c.recovering }

func describe(p *plan.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d.%d:", p.Epoch, p.Step)
	if len(p.Release) > 0 {
		fmt.Fprintf(&b, " release %v", p.Release)
	}
	for _, k := range p.Keep {
		fmt.Fprintf(&b, " keep %v of %d from %d", k.Blocks, k.Seq, k.From)
	}
	if len(p.Evict) > 0 {
		fmt.Fprintf(&b, " evict %v", p.Evict)
	}
	for _, o := range p.Open {
		fmt.Fprintf(&b, " open %d=%s@%d(%d read, %d sampled, %s)", o.Seq, o.ID, o.Owner, o.Read, o.Sampled, o.Policy.Spec())
		if len(o.Shared) > 0 {
			fmt.Fprintf(&b, " behind blocks %v", o.Shared)
		}
	}
	for _, d := range p.Decode {
		fmt.Fprintf(&b, " decode %d[%d]=%d", d.Seq, d.Start, d.Tokens)
	}
	for _, k := range p.Chunks {
		fmt.Fprintf(&b, " read %d[%d,%d)", k.Seq, k.Start, k.Start+len(k.Tokens))
		if k.Last {
			b.WriteString(" to its end")
		}
		if len(k.Save) > 0 {
			fmt.Fprintf(&b, " saves %v from %d", k.Save, k.SaveFrom)
		}
	}
	return b.String()
}
