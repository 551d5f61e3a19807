package batcher

// Requests with Spec.Open have as many output tokens as fit. Memory for all of them would leave a request few
// possible owners, or none but all sockets together. So its limit is a lease: the ledger finds owners for that number of
// tokens, and a larger number when the request reaches it. The lease ends the request if no larger one fits the
// cluster. If nodes are lost and the request needs their memory, it waits for them like any other request. It ends
// with the tokens that it has if they do not return within Config.UnservedMillis.

// firstLease is the first limit of an open request, in output tokens. It doubles.
const firstLease = 1024

// openEnd is the state of an open request.
type openEnd struct {
	most    int       // maximum output tokens, by MaxTokens and the context
	moves   bool      // its owner has no memory for the lease, so it is preempted before the next step
	largest []account // sockets of the placement with the most memory since its submission
}

// leaseOf finds owners for an open request of a new placement.
func (l *ledger) leaseOf(r *request) {
	if budget(l.sockets) > budget(r.open.largest) {
		r.open.largest = l.sockets
	}
	least := min(max(1, r.Sampling.MinTokens, len(r.out)), r.open.most)
	if !l.lease(r, min(r.open.most, max(l.firstLease, 2*len(r.out), least)), least) {
		r.limit = least
		r.able, r.cut.must, r.unfit = l.ableOwners(r, least)
	}
}

// lease sets the limit of an open request to a number of output tokens, or to the most that fit if these are at least
// least. It reports whether it did. A cut sequence has memory for all its tokens from the beginning.
func (l *ledger) lease(r *request, output, least int) bool {
	able, cut, why := l.ableOwners(r, output)
	if why != "" {
		if output = l.largestOutput(r, output); output < least {
			return false
		}
		able, cut, why = l.ableOwners(r, output)
	}
	if cut {
		output = l.largestOutput(r, r.open.most)
	}
	r.limit, r.able, r.cut.must, r.unfit = output, able, cut, why
	return true
}

// extend gives an open request that has reached its limit a larger one. It reports whether it did.
func (l *ledger) extend(r *request) bool {
	if !r.Open || r.limit >= r.open.most || r.cut.now || !l.lease(r, min(r.open.most, 2*r.limit), r.limit+1) {
		return false
	}
	r.open.moves = r.phase == decoding && (r.cut.must || !r.canOwn(r.owner))
	return true
}

// leases is the module for open requests.
type leases struct{ s *State }

// awaits makes an open request that has reached its limit wait for lost memory with which it had more tokens. It reports
// whether it did.
func (x *leases) awaits(r *request) bool {
	l := &x.s.ledger
	if !r.Open || x.s.draining && !r.Accepted || r.limit >= r.open.most || budget(l.sockets) >= budget(r.open.largest) ||
		l.with(r.open.largest).largestOutput(r, r.open.most) <= r.limit {
		return false
	}
	_, _, r.unfit = l.ableOwners(r, r.limit+1)
	r.open.moves = r.unfit != "" && r.phase != waiting
	return r.unfit != ""
}

// hasAll reports whether the tokens of an open request, which waits for memory, are all that the placement has memory for.
func (r *request) hasAll() bool {
	return r.Open && len(r.out) > 0 && len(r.out) >= max(r.Sampling.MinTokens, r.limit)
}

// placed ends the open requests whose output is all that fits a new placement, unless they wait for lost memory.
func (x *leases) placed() {
	s := x.s
	for _, r := range append(append(queue(nil), s.waiting...), s.running...) {
		if reason, over := r.finished(s.cfg.EOS); over && r.Open && !r.ended && !r.onlyHoldsCache() && r.unfit == "" && !x.awaits(r) {
			r.complete = true
			s.finish(r, reason, "", "")
		}
	}
	if s.draining {
		x.drain()
	}
}

// drain ends the open requests that wait for lost memory, which comes too late. A job continues after the restart.
func (x *leases) drain() {
	for _, r := range append(append(queue(nil), x.s.waiting...), x.s.running...) {
		if r.unfit != "" && r.hasAll() && !r.Accepted && !r.ended {
			x.end(r)
		}
	}
}

// end ends an open request that has all tokens that fit.
func (x *leases) end(r *request) {
	r.complete = true
	x.s.finish(r, ReasonLength, "", "")
}
