package batcher

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// remotePrefills is the module for prompts that the prefill group reads (docs/decisions/groups.md). In the
// batcher of the decode group it chooses these prompts and admits their caches. In that of the prefill group it
// keeps each cache until the other group has it.
type remotePrefills struct {
	s         *State
	group     bool                // there is a prefill group
	last      uint64              // number of the newest read
	requested map[uint64]*request // by number
}

// plan makes the prefill group read long prompts of waiting requests.
func (x *remotePrefills) plan() {
	for _, r := range x.s.waiting {
		if !x.group || r.remote.Phase != prefillgroup.Undecided || r.unfit != "" || r.cut.must || r.saved.Pending() {
			continue
		}
		read, unread := r.toRead(), 0
		if r.Context == 0 && x.s.contexts.source(r, read) == nil && x.s.sessions.source(r) == nil {
			unread = read
		}
		if unread > 0 {
			unread -= len(x.s.prefix.find(r)) * tensor.BlockSlots
		}
		if !r.remote.Decide(unread, x.s.cfg.PrefillHere, x.last+1) {
			continue
		}
		x.last++
		x.requested[x.last] = r
		spec := r.Spec
		spec.ID, spec.Session, spec.Prefill, spec.Emitted = fmt.Sprintf("%s~%d", r.ID, x.last), "", x.last, slices.Clone(r.out)
		spec.MaxTokens, spec.Arrival, spec.Deadline, spec.Speculate = min(r.limit, len(r.out)+1), 0, 0, speculate.Off
		x.s.out.Prefills = append(x.s.out.Prefills, spec)
	}
}

// done processes the end of a read. A request that needs no cache ends.
func (x *remotePrefills) done(d prefillgroup.Done) {
	r := x.requested[d.Number]
	if r == nil || !r.remote.Finished(d) {
		if r != nil && d.Err != "" {
			x.s.totals.TransferErrors++
		}
		return
	}
	if r.started < 0 {
		r.started, r.warm = max(r.Arrival, x.s.now-d.Millis), d.Warm
	}
	r.warm = min(r.warm, d.Warm)
	switch {
	case d.Pooled != nil:
		r.pooled, r.first = d.Pooled, x.s.now
		x.s.finish(r, ReasonStop, "", "")
	case r.Pool == pooling.None && d.Tokens-len(r.Prompt)+1 >= r.limit:
		x.arrived(r)
	}
}

// arrived processes the results of a read: scores of the prompt, and the token after it.
func (x *remotePrefills) arrived(r *request) {
	d := &r.remote.Done
	r.read, r.cached, r.reached = d.Tokens, d.Tokens, max(r.reached, d.Tokens)
	if r.clustered.sample = d.Sample; r.PromptLogprobs >= 0 {
		x.s.scored(r, &Result{Prompt: d.Scores})
	}
	if r.phase != waiting {
		x.s.drafts.index(r)
		x.s.resumed = append(x.s.resumed, resumption{r, r.seq})
	}
	x.s.handedOver(r)
}

// take admits a request whose cache the prefill group has. It books the bytes before the rows travel.
func (x *remotePrefills) take(r *request) bool {
	if x.s.coming() >= plan.MaxTaking { // the cache waits for its turn in the prefill group
		return false
	}
	owner, need := x.s.fit(r, 0)
	if owner == none {
		return false
	}
	d := &r.remote.Done
	x.s.ledger.admit(r, owner, need)
	x.s.start(r, prefill, d.Tokens, 0) // a later plan opens it, after its cache has arrived
	r.remote.Phase = prefillgroup.Receiving
	x.s.out.Takes = append(x.s.out.Takes, prefillgroup.Take{
		Number: d.Number, Rank: d.Rank, Source: d.Seq, Tokens: d.Tokens,
		Epoch: x.s.epoch, Seq: r.seq, Owner: owner, Policy: r.Policy.Spec(), Adapter: r.Adapter.ID,
	})
	return true
}

// taken processes the result of a Take. If the rows did not arrive, the prompt is read again.
func (x *remotePrefills) taken(t TakeDone) {
	r := x.requested[t.Number]
	if r == nil || r.ended || r.remote.Phase != prefillgroup.Receiving {
		return
	}
	if t.Err != "" {
		x.s.totals.TransferErrors++
		r.remote.Fail(true)
		x.requeue(r)
		return
	}
	x.s.totals.Transferred++
	x.arrived(r)
	r.remote.Restart()
}

// requeue frees the cache of a running request, and queues it with its tokens unless its turn has ended.
func (x *remotePrefills) requeue(r *request) {
	x.s.free(r)
	x.s.running.remove(r)
	r.restart() // also if r is idle: the next plan must not resume its cache
	if !r.idle {
		x.s.waiting.insert(r)
	}
}

// end drops the reads that no request needs any more.
func (x *remotePrefills) end() {
	at := len(x.s.out.Drops)
	for n, r := range x.requested {
		if r.ended || !r.remote.Pending() || r.remote.Number != n {
			delete(x.requested, n)
			x.s.out.Drops = append(x.s.out.Drops, n)
		}
	}
	slices.Sort(x.s.out.Drops[at:])
}

// export keeps the cache of a prompt for the decode group.
func (x *remotePrefills) export(r *request) {
	d := &r.remote.Done
	d.Number, d.Epoch, d.Rank, d.Seq, d.Tokens, d.Sample = r.Prefill, x.s.epoch, r.owner, r.seq, r.read, r.clustered.sample
	d.Scores, d.Warm, d.Millis = r.remote.Scores, r.warm, x.s.now-r.started
	x.s.out.Exports = append(x.s.out.Exports, *d)
}

// interrupted ends all reads of an epoch that is over. The decode group requests them again.
func (x *remotePrefills) interrupted(reason string) {
	for _, list := range []queue{slices.Clone(x.s.waiting), x.s.running} {
		for _, r := range list {
			if r.remote.Restart(); r.Prefill == 0 || r.ended {
				continue
			}
			code := CodeDraining
			if f := x.s.flight; f != nil && f.rows[r.seq] == r {
				code = CodeFailed
			}
			x.s.finish(r, ReasonError, code, reason)
		}
	}
}

// finished reports the end of a read that left no cache: an error, or a vector.
func (x *remotePrefills) finished(r *request, f *Finish) {
	if r.Prefill == 0 || f.Reason == ReasonCancelled {
		return
	}
	d := prefillgroup.Done{Number: r.Prefill, Pooled: r.pooled, Warm: r.warm, Millis: x.s.now - r.started}
	if f.Reason == ReasonError {
		d.Err, d.Fault = f.Message, f.Code != CodeDraining
	}
	x.s.out.Exports = append(x.s.out.Exports, d)
}

// lends reports whether a request keeps its cache for the decode group.
func (r *request) lends() bool { return r.Prefill != 0 && r.phase == decoding }
