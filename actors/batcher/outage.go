package batcher

// Outage is what the end of an epoch has cost the sequences that it interrupted, so far.
type Outage struct {
	Epoch   uint32 // that ended
	Streams int    // sequences that ran in it, or that still waited from an earlier outage
	Waiting int    // sequences without a new token since
	Failed  int    // sequences that ended with an error

	Recomputed, Replayed uint64 // tokens computed again, by prefill and by decode
	Restored, Copies     uint64 // caches that were used again: of owners, and replicas
	SilentMillis         int64  // the longest time between two tokens of a sequence
}

// interrupt begins the outage of the present epoch: it interrupts all running requests.
func (s *State) interrupt() {
	o := &Outage{Epoch: s.epoch}
	for _, list := range []queue{s.running, s.waiting} {
		for _, r := range list {
			if r.ended || r.idle || r.phase == waiting && r.outage == nil {
				continue
			}
			r.outage = o
			o.Streams++
		}
	}
	o.Waiting = o.Streams
	s.outage = o
}

// goesOn ends the outage of a request that has a new token.
func (s *State) goesOn(r *request) {
	if o := r.outage; o != nil {
		if len(r.out) > 1 {
			o.SilentMillis = max(o.SilentMillis, s.now-r.lastToken)
		}
		o.over(false)
		r.outage = nil
	}
	r.lastToken = s.now
}

// over counts a sequence of the outage that goes on or has ended.
func (o *Outage) over(failed bool) {
	if o == nil {
		return
	}
	o.Waiting--
	if failed {
		o.Failed++
	}
}

func (o *Outage) restored(own, copies uint64) {
	if o != nil {
		o.Restored += own
		o.Copies += copies
	}
}
