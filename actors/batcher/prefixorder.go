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
	return r.prefix.passed >= maxPassed && (!r.Accepted || r.prefix.passed >= maxPassedJobs)
}

// next is who is admitted now, and passes those between.
func (c *prefixCache) next(first *request) *request {
	if first == nil || first.overdue() || len(c.blocks) == 0 || !c.wouldEvict(first) {
		return first
	}
	best, most, looked := first, len(c.find(first, first.toRead())), 0
	for _, r := range c.s.waiting {
		if r == first || !c.alike(first, r) {
			continue
		}
		read, tokens := r.asks()
		if n := len(c.find(r, read)); n > most {
			if _, _, why := c.s.ledger.choose(r.Policy, read, tokens, 0, r.canOwn); why == "" { // who does not fit holds nobody up
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
func (c *prefixCache) alike(first, r *request) bool {
	return inOrder(first, r) < 0 && r.Priority == first.Priority && r.Accepted == first.Accepted && c.s.eligible(r) && c.s.awaits(r) == 0
}

// pass notes that r was admitted.
func (c *prefixCache) passOver(r *request) {
	first := c.s.head()
	if first == nil || inOrder(r, first) < 0 {
		return
	}
	first.prefix.passed++
	for _, v := range c.s.waiting {
		if inOrder(v, r) >= 0 {
			return
		}
		if c.alike(first, v) {
			v.prefix.passed++
		}
	}
}

// wouldEvict says whether a request's admission takes memory from the prefix cache.
func (c *prefixCache) wouldEvict(r *request) bool {
	read, tokens := r.asks()
	_, need, why := c.s.ledger.choose(r.Policy, read, tokens, len(c.find(r, read)), r.canOwn)
	if why != "" {
		return false
	}
	for i := range need {
		if need[i] > c.s.ledger.sockets[i].free() {
			return true
		}
	}
	return false
}
