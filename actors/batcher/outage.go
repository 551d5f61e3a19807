package batcher

// Outage is what the end of an epoch has cost the sequences that it cut off, so far.
type Outage struct {
	Epoch   uint32 // that ended
	Streams int    // sequences that ran in it, or had been cut off before and had not gone on
	Waiting int    // of these, those that have no new token yet
	Failed  int    // of these, those that ended with an error instead

	Recomputed, Replayed uint64 // tokens computed again, by prefill and by decode
	Restored, Copies     uint64 // caches that went on: the owner's own, replicas
	SilentMillis         int64  // the longest that one waited from its newest token before to the first one after
}

// interrupt begins the outage of the present epoch: what runs is cut off.
func (s *State) interrupt() {
	o := &Outage{Epoch: s.epoch}
	for _, list := range []queue{s.running, s.waiting} {
		for _, r := range list {
			if r.ended || r.phase == waiting && r.outage == nil {
				continue
			}
			r.outage = o
			o.Streams++
		}
	}
	o.Waiting = o.Streams
	s.outage = o
}

// goesOn notes a new token.
func (s *State) goesOn(r *request) {
	if o := r.outage; o != nil {
		if len(r.out) > 1 {
			o.SilentMillis = max(o.SilentMillis, s.now-r.spoke)
		}
		o.over(false)
		r.outage = nil
	}
	r.spoke = s.now
}

// over: a sequence of the outage goes on, or has ended.
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
