package batcher

// Requests about one text do better one after the other: in memory for few texts each text is
// then read once. So who begins with what the prefix cache has goes before the first in order,
// if that one would have some of the cache evicted; within its priority, and not too often.

const (
	maxPassed     = 16 // times that later ones are admitted before a request on this ground
	maxPassedJobs = 64 // that nobody looks on at
	groupWindow   = 64 // requests that are looked at
)

// overdue says whether nobody may go before the request any more.
func (r *request) overdue() bool {
	return r.passed >= maxPassed && (!r.Accepted || r.passed >= maxPassedJobs)
}

// next is who is admitted now, and passes those between.
func (s *State) next() *request {
	first := s.head()
	if first == nil || first.overdue() || len(s.prefix.blocks) == 0 || !s.wouldEvict(first) {
		return first
	}
	best, most, looked := first, len(s.find(first, first.toRead())), 0
	for _, r := range s.waiting {
		if r == first || !s.alike(first, r) {
			continue
		}
		read, tokens := r.asks()
		if n := len(s.find(r, read)); n > most {
			if _, _, why := s.ledger.choose(r.Policy, read, tokens, 0, r.canOwn); why == "" { // who does not fit holds nobody up
				best, most = r, n
			}
		}
		if looked++; r.overdue() || looked == groupWindow {
			break
		}
	}
	return best
}

// alike says whether a request may go before the first in order, or is passed with it.
func (s *State) alike(first, r *request) bool {
	return inOrder(first, r) < 0 && r.Priority == first.Priority && r.Accepted == first.Accepted && s.eligible(r) && s.awaits(r) == 0
}

// pass notes that r was admitted.
func (s *State) pass(r *request) {
	first := s.head()
	if first == nil || inOrder(r, first) < 0 {
		return
	}
	first.passed++
	for _, v := range s.waiting {
		if inOrder(v, r) >= 0 {
			return
		}
		if s.alike(first, v) {
			v.passed++
		}
	}
}

// wouldEvict says whether a request's admission takes memory from the prefix cache.
func (s *State) wouldEvict(r *request) bool {
	read, tokens := r.asks()
	_, need, why := s.ledger.choose(r.Policy, read, tokens, len(s.find(r, read)), r.canOwn)
	if why != "" {
		return false
	}
	for i := range need {
		if need[i] > s.ledger.sockets[i].free() {
			return true
		}
	}
	return false
}
