package batcher

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/options"
)

// Adapter is the LoRA adapter of a request.
type Adapter struct {
	ID    lora.ID // zero: none
	Bytes int64   // its memory on one socket, at most
}

// AdapterDone is the result of a load.
type AdapterDone struct {
	Epoch uint32
	ID    lora.ID
	Err   string // "": all sockets have the adapter
}

// adapted is the module for LoRA adapters. A request is admitted when all sockets have its adapter in
// memory, which the cache of package adapters decides. A sequence that resumes in a new epoch has no
// rows until then. An idle session, a held context and a cache for the decode group have no rows either, so they do not
// keep their adapter in memory.
type adapted struct {
	s       *State
	cache   adapters.Cache
	blocked *request // requests with adapters that come after it wait, so that its adapter gets room
}

// rowless reports whether a decoding request has no rows for now.
func (r *request) rowless() bool {
	return r.holdsContext() || r.paused || r.idle || r.lends() || r.stalled
}

func (r *request) hasAdapter() bool { return r.Adapter.ID != (lora.ID{}) }

// place begins an epoch.
func (x *adapted) place(p Placed) {
	least := p.Sockets[0].Adapters
	for _, socket := range p.Sockets {
		least = min(least, socket.Adapters)
	}
	x.cache.Reset(least)
	for _, r := range x.s.running {
		r.paused = r.hasAdapter()
	}
}

// usesAdapter reports whether a request has or will have rows, for which its adapter must be in memory.
func (r *request) usesAdapter() bool {
	return r.hasAdapter() && !r.idle && !r.holdsContext() && !r.lends()
}

// refuse returns why the placement cannot take the adapter of a request, or "".
func (x *adapted) refuse(r *request) string {
	if !r.hasAdapter() || r.Adapter.Bytes <= x.cache.Limit() {
		return ""
	}
	return fmt.Sprintf("its LoRA adapter takes %d bytes of memory, and a node has %d for adapters", r.Adapter.Bytes, x.cache.Limit())
}

// tooLarge returns the message for a request whose adapter refuse does not accept.
func (x *adapted) tooLarge(r *request) string {
	return fmt.Sprintf("%s: use an adapter of smaller rank, or restart the nodes with a larger %s", x.refuse(r), options.Name("lora-memory"))
}

// requeue queues the running requests whose adapter the new placement cannot take. They would have no rows.
func (x *adapted) requeue() {
	for _, r := range slices.Clone(x.s.running) {
		if x.refuse(r) != "" {
			x.s.preempt(r)
		}
	}
}

// admits reports whether the sockets have the adapter of a waiting request, and no earlier request
// waits for room.
func (x *adapted) admits(r *request) bool {
	return !r.hasAdapter() || x.cache.Ready(r.Adapter.ID) && (x.blocked == nil || inOrder(r, x.blocked) < 0)
}

// plan orders loads of adapters for the requests that run or wait, in order. Those whose prompts the prefill group reads
// come last, and no request waits for them: the prefill group may need their adapters after those of other requests,
// whose caches it holds until they are admitted here.
func (x *adapted) plan() {
	var of, away []*request
	for _, list := range []queue{x.s.running, x.s.waiting} {
		for _, r := range list {
			switch {
			case !r.usesAdapter() || r.ended || r.unfit != "" || r.unread:
			case r.remote.Away():
				away = append(away, r)
			default:
				of = append(of, r)
			}
		}
	}
	x.blocked = nil
	if len(of)+len(away) == 0 {
		return
	}
	var wanted []adapters.Wanted
	for _, list := range [][]*request{of, away} {
		for _, r := range list {
			wanted = append(wanted, adapters.Wanted(r.Adapter))
		}
	}
	loads, at := x.cache.Plan(x.s.now, wanted, x.inUse)
	x.s.out.Adapters = append(x.s.out.Adapters, loads...)
	if at < len(of) {
		x.blocked = of[at]
	}
}

// inUse reports whether sequences use an adapter: they have rows, or the plan in flight opens them. A load may reach a
// socket before that plan.
func (x *adapted) inUse(id lora.ID) bool {
	if f := x.s.flight; f != nil && slices.ContainsFunc(f.plan.Open, func(o plan.Open) bool { return o.Adapter == id }) {
		return true
	}
	return slices.ContainsFunc(x.s.running, func(r *request) bool { return r.Adapter.ID == id && r.usesAdapter() })
}

// done processes the result of a load. After several failures the requests of the adapter end.
func (x *adapted) done(d AdapterDone) {
	if d.Epoch != x.s.epoch || !x.s.placed {
		return
	}
	hopeless := x.cache.Loaded(x.s.now, d.ID, d.Err == "")
	for _, r := range append(slices.Clone(x.s.running), x.s.waiting...) {
		switch {
		case r.Adapter.ID != d.ID || r.ended:
		case d.Err == "":
			r.paused = false
		case hopeless:
			x.s.finish(r, ReasonError, CodeAdapter, fmt.Sprintf("the nodes cannot load its LoRA adapter: %s", d.Err))
		}
	}
}

// reopen adds the resumed sequences to a plan, except those that wait for their adapters. They come before its
// other sequences, which may begin with their caches. A plan without rows is not sent, and leaves them to the next.
func (x *adapted) reopen(p *plan.Plan) {
	var first []plan.Open
	for _, q := range x.s.resumed {
		if r := q.r; x.opens(r) && q.runs() {
			open := r.opens()
			open.Reserve, open.Resume, open.Replica = r.cached+1, r.tokens(0, r.cached), r.resides.replica
			first = append(first, open)
		}
	}
	p.Open = append(first, p.Open...)
}

// reopened removes the resumed sequences that the last plan opened.
func (x *adapted) reopened() {
	x.s.resumed = slices.DeleteFunc(x.s.resumed, func(q resumption) bool { return x.opens(q.r) || !q.runs() })
}

// opens reports whether a plan can open a resumed sequence: the sockets have its adapter, if it has one.
func (x *adapted) opens(r *request) bool {
	return !r.paused && (!r.hasAdapter() || x.cache.Ready(r.Adapter.ID))
}
