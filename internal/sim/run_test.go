package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// Options of one run.
type Options struct {
	Seed  uint64
	Bug   Bug  // the mutant to run
	Blind bool // check only the state of clients and nodes, not the messages (I4)
	Trace bool // keep the transcript
}

// Report is the result of a run.
type Report struct {
	Seed       uint64
	Broken     string // the broken guarantee; "": none
	Transcript string
	Cover      Cover
	Events     int
	Steps      int
	Recovery   time.Duration // from the end of the last fault to the end of the last request
}

// Replay is the command that repeats a run.
func (r *Report) Replay() string {
	return fmt.Sprintf("go test ./internal/sim -run TestSeed -seed=%d -v", r.Seed)
}

const (
	maxNodes  = 5
	maxRivals = 2   // coordinators
	scale     = 40  // divisor of the deadlines for hanging nodes
	paceScale = 160 // ... and for slow nodes
)

// config has the parameters that a seed draws at the start. The times are those of package cluster,
// shorter but in the same order.
type config struct {
	batcher batcher.Config
	nodes   int
	waitFor int // nodes that the first placement waits for
	most    int // maximum of sockets in a placement; 0: unlimited
	clients int
	longest int // prompt
	output  int
	faults  int
	keeps   bool // sockets keep caches between epochs
	files   bool // and blocks of the prefix cache in files
	durable bool // epochs are recorded before they are sent to nodes
	rivals  int  // coordinators that compete for the lease
	crowded bool // many growing sequences in little memory

	tick, compare, settle, backoff, quarantine, suspect          time.Duration
	load, join, hello, sync, retire, probe, describe, ttl, renew time.Duration
	store                                                        time.Duration // time after which a request to the store counts as lost
	stall, step, loadStall, loadAll, pause                       time.Duration // for nodes that hold up the others
	busy                                                         time.Duration // requests arrive until then
	quiet                                                        time.Duration // faults occur until then
	bound                                                        time.Duration // everything must have ended this long after that
	// interval of the checks whether the cluster has settled after that
	rest time.Duration
}

func (w *world) configure() {
	r := w.rng
	c := &w.cfg
	*c = config{
		tick: 40 * time.Millisecond, compare: 25 * time.Millisecond, settle: 60 * time.Millisecond,
		backoff: 20 * time.Millisecond, quarantine: 80 * time.Millisecond, suspect: 100 * time.Millisecond,
		load: 2 * time.Second, join: 150 * time.Millisecond, hello: 10 * time.Millisecond, sync: 250 * time.Millisecond,
		stall: 5 * time.Second / scale, step: 30 * time.Second / scale, loadStall: 160 * time.Millisecond,
		loadAll: 400 * time.Millisecond, pause: 10 * time.Second / scale,
		retire: 120 * time.Millisecond, probe: 60 * time.Millisecond, describe: 150 * time.Millisecond,
		ttl: 160 * time.Millisecond, renew: 40 * time.Millisecond, store: 30 * time.Millisecond,
		busy: 350 * time.Millisecond, quiet: 700 * time.Millisecond, bound: 8 * time.Second, rest: 100 * time.Millisecond,
	}
	c.nodes = 1 + r.IntN(4)
	if w.chance(8) {
		c.nodes = maxNodes
	}
	if w.chance(2) {
		c.waitFor = 1 + r.IntN(c.nodes)
	}
	if w.chance(4) {
		c.most = 1 + r.IntN(c.nodes)
	}
	c.durable, c.rivals = w.chance(2), 1
	if c.durable {
		c.rivals += w.rng.IntN(maxRivals)
	}
	c.keeps = !w.chance(3)
	c.clients = 2 + r.IntN(8)
	c.longest = 8 + r.IntN(80)
	c.output = 2 + r.IntN(30)
	c.faults = r.IntN(12)
	b := &c.batcher
	*b = batcher.Config{Geometry: geometry, ContextLimit: window, EOS: []int32{eos}}
	b.MaxRunning = 2 + r.IntN(6)
	if c.crowded = w.chance(4); c.crowded {
		c.nodes = 1 + r.IntN(3)
		c.clients, c.longest, c.output, b.MaxRunning = 6+r.IntN(3), 80, 24, 7
	}
	c.waitFor = min(c.waitFor, c.nodes)
	c.most = min(c.most, c.nodes)
	b.TokenBudget = b.MaxRunning + 12 + r.IntN(60)
	b.Chunk = 8 + r.IntN(b.TokenBudget-8)
	b.MaxWaiting = 6
	b.PriorityMillis, b.JobMillis = 40, 240
	b.StepMillis = (c.step + 150*time.Millisecond).Milliseconds()
	b.UnservedMillis = 1500
	b.MaxFailures = 8
	b.Replicas = r.IntN(2)
	b.DecodeSteps = 1 + int(mix(w.opt.Seed, 23)%3)*7
	b.DiskMillis = 60
	c.files = mix(w.opt.Seed, 19)%2 == 0
}

// Run runs one seed.
func Run(o Options) (r *Report) {
	w := &world{opt: o, rng: rand.New(rand.NewPCG(o.Seed, 0x5a0a1))}
	w.watch = &checker{w: w, groups: map[uint32]*epoch{}, terms: map[uint64]*coordinator{}, openers: map[uint32]*coordinator{}}
	defer func() {
		if cause := recover(); cause != nil {
			w.watch.fail("panic: %v\n%s", cause, debug.Stack())
		}
		r = &Report{Seed: o.Seed, Broken: w.watch.broken, Transcript: w.log.String(), Cover: w.cover, Events: w.ran, Steps: w.watch.steps}
		for _, k := range w.clients {
			if !k.calm {
				r.Recovery = max(r.Recovery, k.ended-w.cfg.quiet)
			}
		}
	}()
	w.net.troubled = w.fresh()
	w.disk.shelves = map[string]*shelf{}
	w.configure()
	for i := range w.cfg.rivals {
		w.candidate(i, false)
	}
	block := int64(geometry.Layout.BlockBytes())
	tight := w.chance(2)
	for slot := range w.cfg.nodes {
		budget := block * int64(9+w.rng.IntN(12))
		switch {
		case w.cfg.crowded:
			budget = block * int64(9+w.rng.IntN(5))
		case w.chance(6):
			budget = block * int64(3+w.rng.IntN(6))
		case !tight:
			budget += block * int64(w.rng.IntN(60))
		}
		w.nodes = append(w.nodes, w.newNode(slot, budget, float64(w.rng.IntN(3))))
	}
	for i := range w.cfg.clients {
		k := w.newClient(i)
		w.clients = append(w.clients, k)
		busy := w.cfg.busy
		if w.cfg.crowded {
			busy /= 8
		}
		w.after(nil, w.between(0, busy), k.begin)
	}
	w.plan()
	w.play()
	return nil
}

// play runs through the faults, then until all requests have ended, then until the cluster is at
// rest.
func (w *world) play() {
	w.run(w.cfg.quiet, func() bool { return false })
	w.now = w.cfg.quiet
	w.calm()
	w.run(w.cfg.quiet+w.cfg.bound, func() bool {
		for _, k := range w.clients {
			if k.refused == nil && k.end == nil {
				return false
			}
		}
		return true
	})
	if w.watch.broken == "" {
		w.watch.ends()
	}
	w.settle(w.watch.restless)
	w.last()
	w.settle(w.watch.restless)
	w.settle(w.watch.full)
	w.watch.audit()
	for _, n := range w.nodes { // for the counters
		if g := w.groupOf(n.process); g != nil {
			g.close()
		}
	}
	w.watch.memory()
}

// settle runs until why returns "".
func (w *world) settle(why func() string) {
	for end := w.now + w.cfg.bound; w.watch.broken == ""; {
		if what := why(); what == "" {
			return
		} else if w.now >= end {
			w.watch.fail("%s, %v after the last fault", what, w.now-w.cfg.quiet)
		}
		w.run(w.now+w.cfg.rest, func() bool { return false })
	}
}

// last sends one more request, which must be served. Its steps carry the releases that sockets have
// missed.
func (w *world) last() {
	if w.watch.broken != "" {
		return
	}
	k := w.newClient(len(w.clients))
	k.spec.ID, k.spec.Prompt, k.spec.MaxTokens, k.calm = "last", k.spec.Prompt[:1], 2, true
	k.job = true                   // a late take-over does not end it
	k.spec.Policy = kvcache.Full() // needs the least
	w.clients = append(w.clients, k)
	w.after(nil, 0, k.begin)
	w.run(w.now+w.cfg.bound, func() bool { return k.refused != nil || k.end != nil })
	if k.end == nil || k.end.Reason == batcher.ReasonError {
		w.watch.fail("I8: a request after all faults was not served: refused %+v, ended %+v", k.refused, k.end)
	}
}

// transcript is the log of a run, one line per event.
type transcript struct{ lines []string }

func (t *transcript) add(at time.Duration, line string) {
	t.lines = append(t.lines, fmt.Sprintf("%10.3fms  %s", float64(at.Microseconds())/1000, line))
}

func (t *transcript) String() string { return strings.Join(t.lines, "\n") }
