package batcher

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

// endOutage ends the outage of a request that has a new token.
func (s *State) endOutage(r *request) {
	if o := r.outage; o != nil {
		if len(r.out) > 1 {
			o.SilentMillis = max(o.SilentMillis, s.now-r.lastToken)
		}
		o.Over(false)
		r.outage = nil
	}
	r.lastToken = s.now
}
