package sim

import (
	"fmt"

	"shoal/actors/batcher"
	"shoal/kvcache"
	"shoal/topology"
)

// memory is the ledger of a node's cache. The bytes are those of the real cost
// functions; what lies in them is cells.
type memory struct {
	budget, used, peak int64
}

// resize changes a holding from its bytes to `to`; it is refused past the budget.
func (m *memory) resize(holds *int64, to int64) error {
	if to > *holds && m.used+to-*holds > m.budget {
		return fmt.Errorf("%w: %d bytes asked, %d of %d in use", kvcache.ErrBudget, to-*holds, m.used, m.budget)
	}
	m.used += to - *holds
	m.peak = max(m.peak, m.used)
	*holds = to
	return nil
}

// sequence is what a socket holds of one, as actors/socket has it.
type sequence struct {
	open  batcher.Open
	fresh int // tokens that prefill reads and that were not sampled before
	read  int // committed

	part      [heads][]cell // own heads of the prompt
	partBytes int64
	own       [heads][]cell // the owner's
	ownBytes  int64
	seen      history

	sealed bool          // own is whole
	tokens int           // in own, settled: the step that wrote them was followed by another
	staged bool          // own has one more, of the last step
	before [heads][]cell // what own was without it
}

func (q *sequence) policy() *kvcache.Policy { return q.open.Policy }

func (q *sequence) release(m *memory) {
	_ = m.resize(&q.partBytes, 0)
	_ = m.resize(&q.ownBytes, 0)
	q.part, q.own = [heads][]cell{}, [heads][]cell{}
}

// reservePart books prompt tokens [0, n) of this rank's heads.
func (q *sequence) reservePart(m *memory, own topology.Range, n int) error {
	return m.resize(&q.partBytes, max(q.partBytes, kvcache.PrefillBytes(geometry, own.Len(), n, q.policy())))
}

// openOwn books what the owner's cache takes at the end of prefill. Under an
// identity policy the blocks of its own heads are adopted, so they are booked already.
func (q *sequence) openOwn(m *memory, own topology.Range) error {
	n := q.open.Read
	bytes := kvcache.ResidentBytes(geometry, n, n, q.policy())
	if q.policy().KeepsAll() {
		bytes -= kvcache.PrefillBytes(geometry, own.Len(), n, q.policy())
	}
	return m.resize(&q.ownBytes, bytes)
}

// seal ends the hand-over: adopted blocks change hands, the rest of the prompt goes.
func (q *sequence) seal(m *memory, owner bool) {
	part := q.partBytes
	_ = m.resize(&q.partBytes, 0)
	if owner && q.policy().KeepsAll() {
		_ = m.resize(&q.ownBytes, q.ownBytes+part)
	}
	q.part = [heads][]cell{}
}

// reserveOwn books the cache up to n tokens.
func (q *sequence) reserveOwn(m *memory, n int) error {
	return m.resize(&q.ownBytes, max(q.ownBytes, kvcache.ResidentBytes(geometry, q.open.Read, n, q.policy())))
}
