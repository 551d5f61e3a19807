package batcher

// The order of admissions. Requests about the same text run faster one after another: if memory
// holds only a few texts, each text is then read once. So a request whose text is cached is
// admitted before the first in order, if the first would evict part of the cache. Both must have
// the same priority, and no request is passed too often.

const (
	maxPassed     = 16 // maximum number of later requests admitted before one
	maxPassedJobs = 64 // the same for jobs, for which no client waits
	groupWindow   = 64 // maximum number of requests that are compared
)

// overdue reports whether no further request may go before this one.
func (r *request) overdue() bool {
	return r.prefix.passed >= maxPassed && (!r.Accepted || r.prefix.passed >= maxPassedJobs)
}

// next returns the request to admit: the first in order, or a later one whose text is cached.
func (c *prefixCache) next(first *request) *request {
	if first == nil || first.overdue() || c.tree.Len() == 0 || !c.wouldEvict(first) {
		return first
	}
	best, most, looked := first, len(c.find(first)), 0
	for _, r := range c.s.waiting {
		if r == first || !c.interchangeable(first, r) {
			continue
		}
		if n := len(c.find(r)); n > most && c.s.ledger.choose(r, 0).Why == "" {
			best, most = r, n
		}
		if looked++; r.overdue() || looked == groupWindow {
			break
		}
	}
	return best
}

// interchangeable reports whether r may be admitted before first. A held context that was preempted may not,
// because it would be preempted again.
func (c *prefixCache) interchangeable(first, r *request) bool {
	return r.rank < lastRank && inOrder(first, r) < 0 && r.Priority == first.Priority && r.Accepted == first.Accepted &&
		c.s.eligible(r) && c.s.awaits(r) == 0
}

// passOver counts, for each request before r, that r is admitted first.
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
		if c.interchangeable(first, v) {
			v.prefix.passed++
		}
	}
}

// wouldEvict reports whether a request's admission takes memory from the prefix cache.
func (c *prefixCache) wouldEvict(r *request) bool {
	to := c.s.ledger.choose(r, len(c.find(r)))
	if to.Why != "" {
		return false
	}
	for i := range to.Need {
		if to.Need[i] > c.s.ledger.sockets[i].free() {
			return true
		}
	}
	return false
}
