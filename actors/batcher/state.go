package batcher

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/batcher/outbox"
	"github.com/shoal-llm/shoal/actors/batcher/overlap"
	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/actors/batcher/rate"
	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/actors/batcher/settings"
	"github.com/shoal-llm/shoal/actors/batcher/threads"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// State is the scheduler: the waiting and running requests, their memory, and the step in flight.
// It is not safe for concurrent use.
type State struct {
	cfg Config
	now int64 // of the last Tick

	requests map[string]*request // by ID, until Finish
	waiting  queue
	running  queue // in prefill and decode, in order; they have memory

	epoch    uint32 // the newest that was placed
	placed   bool   // the placement works
	unplaced string // the reason when it does not
	onePass  bool   // the sockets run the model once per plan
	ledger   ledger
	draining bool

	flight  *flight               // the step in flight
	release outbox.Outbox[uint64] // sequences that the sockets must release
	resumed []resumption          // sequences that the next plan opens with their caches

	// Modules. Each has its own state, and hooks that the scheduler calls: admit, plan, done, evict.
	prefix    prefixCache
	inputs    inputs
	drafts    draftRows
	threads   threads.Chooser
	overlap   overlap.Chooser
	contexts  contexts
	sessions  sessions
	saves     saves
	clusters  clusters
	layers    layers
	cuts      cuts
	leases    leases
	residency residency
	multiStep multiStep
	adapted   adapted
	remote    remotePrefills

	submitted, sequences, steps uint64 // counters
	rate                        rate.Rate
	totals                      Totals
	outage                      *Outage // the newest, or nil
	out                         Effects
}

// Config is the configuration of the state.
type Config = settings.Config

// ErrConfig means that a Config is invalid.
var ErrConfig = settings.ErrConfig

type flight struct {
	plan    *plan.Plan
	started int64
	rows    map[uint64]*request // requests by sequence of the plan's rows
}

// New makes the state of a cluster that is not placed yet.
func New(cfg Config) (*State, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Geometry.Chunk = cfg.Chunk
	s := &State{cfg: cfg, requests: map[string]*request{}, unplaced: "the cluster has not started"}
	s.ledger = ledger{g: cfg.Geometry, prefill: booking.Prefill{Hidden: cfg.Hidden, Mode: cfg.Prefill}, firstLease: firstLease}
	s.prefix, s.drafts = newPrefixCache(s), newDraftRows(s)
	s.remote = remotePrefills{s: s, requested: map[uint64]*request{}}
	s.saves = saves{s: s, turns: map[uint64]*request{}, idle: map[uint64]*request{}}
	s.adapted.s, s.contexts.s, s.sessions.s, s.clusters.s, s.layers.s, s.residency.s, s.multiStep.s = s, s, s, s, s, s, s
	s.inputs.s, s.cuts.s, s.leases.s = s, s, s
	return s, nil
}

// Step processes one input and returns the actions, in the order that Effects documents.
func (s *State) Step(in Input) Effects {
	s.out = Effects{}
	switch in := in.(type) {
	case Submit:
		s.submit(in.Spec)
	case Cancel:
		if r, ok := s.requests[in.ID]; ok {
			s.finish(r, ReasonCancelled, "", "cancelled")
		}
	case Unread:
		if r, ok := s.requests[in.ID]; ok {
			r.unread = in.Yes
		}
	case StepDone:
		s.stepDone(in)
	case StepFailed:
		if s.flight != nil && in.Epoch == s.flight.plan.Epoch && in.Step == s.flight.plan.Step {
			s.breakEpoch(in.Reason)
		}
	case Placed:
		s.place(in)
	case Unplaced:
		s.suspend(in.Reason)
	case Tick:
		s.tick(in.Now)
	case Drain:
		s.draining = true
		s.leases.drain()
		for _, r := range append(slices.Clone(s.waiting), s.running...) {
			if r.Hold && !r.ended {
				s.finish(r, ReasonCancelled, "", "the server is shutting down")
			}
		}
	case ResetPrefixCache:
		s.prefix.empty = true
	case EndSession:
		s.sessions.end(in.Session)
		s.saves.end(in.Session)
	case PrefillDone:
		s.remote.done(in)
	case TakeDone:
		s.remote.taken(in)
	case SavedDone:
		s.saves.done(in)
	case AdapterDone:
		s.adapted.done(in)
	case DiskDone:
		s.prefix.fetches.Answered(in)
	default:
		panic(fmt.Sprintf("batcher: unknown input %T", in))
	}
	if s.placed {
		s.adapted.plan()
		s.saves.plan()
		s.remote.plan()
	}
	between := s.placed && s.flight == nil
	s.prefix.fetches.Tick(s.now, s.rate.PerSecond)
	if between {
		s.prefix.tree.Begin(s.steps + 1)
		s.prefix.fetches.Poll()
	}
	if s.placed {
		s.prefix.lookAll()
	}
	if between {
		s.reap()
		s.prefix.between()
		s.schedule()
	}
	s.remote.end()
	s.out.Disk = s.prefix.fetches.Asked(s.steps)
	return s.out
}

// Idle reports whether there is no request.
func (s *State) Idle() bool { return len(s.requests) == 0 }

// place starts an epoch. The sockets have the caches that Placed lists, and no others.
func (s *State) place(p Placed) {
	if p.Epoch <= s.epoch {
		return
	}
	s.suspend("a new placement is being made")
	if why := report.CheckRanks(p.Sockets, s.cfg.Geometry.Cut()); why != "" {
		s.out.Faults = append(s.out.Faults, Fault{Kind: "placement", Message: fmt.Sprintf("epoch %d: %s", p.Epoch, why)})
		return
	}
	if !s.cfg.Whole { // no request has memory that was counted with the old values
		if p.StepTokens > s.cfg.MaxRunning {
			s.cfg.TokenBudget = p.StepTokens
		}
		s.cfg.Chunk = min(cmp.Or(p.Chunk, s.cfg.Chunk), s.cfg.TokenBudget)
		s.cfg.Geometry.Chunk, s.ledger.g.Chunk = s.cfg.Chunk, s.cfg.Chunk
	}
	if n := min(p.MaxThreadShift, threads.MaxShift); n != s.threads.Max() || len(p.Sockets) != len(s.ledger.sockets) {
		s.threads = threads.New(n, s.cfg.TrialRounds)
	}
	if s.cfg.Whole {
		p.MaxMicroBatches = 1
	}
	s.overlap = overlap.New(s.cfg.MicroBatches, p.MaxMicroBatches, s.cfg.Geometry.Later) // the network may be another one
	s.epoch, s.placed, s.unplaced, s.onePass, s.remote.group = p.Epoch, true, "", p.OnePass, p.Prefill
	accounts := make([]account, len(p.Sockets))
	for i, socket := range p.Sockets {
		accounts[i] = account{Socket: socket, Memory: prefix.NewMemory(s.cfg.Geometry, i, socket.Heads.Len()), used: -1}
	}
	s.ledger.placed(accounts)
	s.prefix.place(p.Disk)
	s.residency.place(p.Sockets)
	s.adopt(p.Held)
	s.sessions.removeIdle()
	s.adapted.place(p)
	s.adapted.requeue()
	for _, list := range []queue{s.waiting, s.running} {
		for _, r := range list {
			if s.ledger.place(r); r.unfit == "" {
				r.unfit = s.adapted.refuse(r)
			}
			if r.unfit == "" {
				r.unserved = -1
			}
		}
	}
	s.leases.placed()
}

// finish ends a request. Its memory is freed between steps, because the step in flight may still
// write to it. An idle request ended with its turn.
func (s *State) finish(r *request, reason, code, message string) {
	if r.idle {
		return
	}
	delete(s.requests, r.ID)
	r.ended, r.prefix.Ended = true, true
	s.drafts.Finish(&r.drafted, r.out)
	r.outage.Over(reason == ReasonError)
	r.outage = nil
	if r.phase == waiting {
		s.waiting.remove(r)
	}
	f := Finish{
		ID: r.ID, Reason: reason, Code: code, Message: message, Prompt: len(r.Prompt), Output: len(r.out),
		Arrived: r.Arrival, Started: r.started, FirstToken: r.first, Ended: s.now, Preempted: r.preempted,
		Speculated: r.drafted.Counted, Verified: r.drafted.Verified, Pooled: r.pooled,
	}
	s.remote.finished(r, &f)
	s.out.Finishes = append(s.out.Finishes, f)
}

// free frees the memory of a request on all sockets.
func (s *State) free(r *request) {
	s.ledger.release(r)
	s.release.Add(r.seq)
}

// reap frees the memory of ended requests.
func (s *State) reap() {
	kept, idle := s.running[:0], queue(nil)
	for _, r := range s.running {
		if r.ended && s.sessions.keep(r) {
			idle = append(idle, r)
			continue
		}
		if r.ended {
			if !s.prefix.keepOutput(r) {
				s.free(r)
			}
			continue
		}
		kept = append(kept, r)
	}
	clear(s.running[len(kept):])
	s.running = kept
	for _, r := range idle {
		s.running.insert(r)
	}
	s.sessions.expire()
}
