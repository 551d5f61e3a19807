package batcher

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
)

// Snapshot describes the present.
func (s *State) Snapshot() Snapshot {
	v := Snapshot{
		Epoch: s.epoch, Placed: s.placed, Unplaced: s.unplaced, Draining: s.draining, Step: s.steps,
		TokensPerSecond: s.rate.Current, Totals: s.totals, Speculated: s.drafts.Totals(),
		Prefix: s.prefix.tree.Totals, PrefixBlocks: s.prefix.tree.Len(), MicroBatches: s.overlap.Last(),
	}
	if s.outage != nil {
		v.Outage = *s.outage
	}
	if f := s.flight; f != nil {
		v.InFlight, v.BatchRows, v.BatchSequences = true, f.plan.Tokens(), len(f.rows)
	}
	v.ThreadShift, v.Trying, v.Trials = s.threads.Trials()
	for _, a := range s.ledger.sockets {
		v.Sockets = append(v.Sockets, SocketLedger{
			ID: a.ID, Budget: a.Budget, Reserved: a.reserved + a.Shared - a.Evictable, Used: a.used, Freed: a.freed,
			Replicas: a.replicas, Shared: a.Shared - a.Evictable, Evictable: a.Evictable, Sequences: a.sequences, Files: a.files, Scratch: a.Scratch,
		})
	}
	names := [...]string{waiting: "waiting", prefill: "prefill", decoding: "decoding"}
	for _, r := range s.running {
		state := RequestState{ID: r.ID, State: names[r.phase], Owner: s.ledger.sockets[r.owner].ID,
			Prompt: len(r.Prompt), Output: len(r.out), Cached: r.cached, Preempted: r.preempted, Cut: r.cut.now, Hold: r.Hold}
		if r.resides.replica != none {
			state.Replica, state.Copied = s.ledger.sockets[r.resides.replica].ID, r.booked[r.resides.replica]
		}
		for i, bytes := range r.booked {
			state.Bytes += bytes
			state.Bytes += int64(r.blocksOn(i)) * s.ledger.sockets[i].Block
		}
		switch {
		case r.ended:
			state.State = "ending"
		case r.holdsContext():
			state.State = "context"
		case r.idle:
			state.State = "session"
		case r.decodesCut():
			state.State = names[decoding]
		case r.lends() || r.remote.Phase == prefillgroup.Receiving || r.saved.Phase == saved.Loading:
			state.State = "transfer"
		}
		v.Running = append(v.Running, state)
	}
	head := s.head()
	for _, r := range s.waiting {
		state := RequestState{ID: r.ID, State: "waiting", Prompt: len(r.Prompt), Output: len(r.out), Preempted: r.preempted, Hold: r.Hold}
		state.Reason = s.why(r, len(v.Waiting), head)
		switch {
		case !r.onlyHoldsCache():
			v.Waiting = append(v.Waiting, state)
		case r.Hold:
			state.State = "evicted"
			v.Evicted = append(v.Evicted, state)
		}
	}
	return v
}

// why returns the reason why a request waits.
func (s *State) why(r *request, ahead int, head *request) string {
	switch {
	case !s.placed:
		return s.unplaced
	case r.unfit != "":
		return "too large for the present cluster: " + r.unfit
	case r.unread:
		return "its client does not read its tokens"
	case r.remote.Away():
		return "the prefill nodes read its prompt"
	case r.saved.Away():
		return "the nodes look for the cache of its session"
	case s.awaits(r) != 0:
		return "another request reads the same text"
	case s.prefix.awaitsBlocks(r):
		return "blocks of its text are being fetched"
	case r != head:
		return fmt.Sprintf("%d ahead in the queue", ahead)
	case s.full():
		return fmt.Sprintf("%d sequences run, the limit is %d", s.busy(), s.cfg.MaxRunning)
	}
	if why := s.ledger.choose(r, 0).Why; why != "" {
		return why
	}
	return "the next step"
}
