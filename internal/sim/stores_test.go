package sim

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	kvmemory "github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// memory is the ledger of a node's cache. The bytes are those of the real cost functions; the
// contents are cells.
type memory struct {
	budget, used, peak int64
}

// resize changes the bytes of a holding. It fails above the budget.
func (m *memory) resize(holds *int64, to int64) error {
	if to > *holds && m.used+to-*holds > m.budget {
		return fmt.Errorf("%w: %d bytes requested, %d of %d in use", kvmemory.ErrBudget, to-*holds, m.used, m.budget)
	}
	m.used += to - *holds
	m.peak = max(m.peak, m.used)
	*holds = to
	return nil
}

// sequence is the part of one sequence on a socket, by machine.Machine.
type sequence struct {
	open    *plan.Open
	policy  *kvcache.Policy
	replica int // rank; -1: none

	part      [heads][]cell // own heads of the prompt
	partBytes int64
	own       cache    // the owner's
	copy      cache    // the replica
	shared    []*block // blocks of the prefix cache that it holds
	seen      history
	fed       []int32 // tokens of the last decode rows, which are included in seen
}

// block is a block of the prefix cache: rows of this socket's heads.
type block struct {
	at      int // number of the block in its text
	cells   [heads][]cell
	bytes   int64
	holders int // sequences, and the cache
}

func (m *memory) drop(b *block) {
	if b.holders--; b.holders == 0 {
		_ = m.resize(&b.bytes, 0)
	}
}

// sharedBytes counts each shared block once.
func (q *sequence) sharedBytes() (n int64) {
	for _, b := range q.shared {
		n += b.bytes
	}
	return n
}

func (q *sequence) unshare(m *memory) {
	for _, b := range q.shared {
		m.drop(b)
	}
	q.shared = nil
}

// hold makes a sequence a holder of a block, and frees its own rows of that block if own is set.
func (q *sequence) hold(m *memory, b *block, own bool) {
	b.holders++
	q.shared = append(q.shared, b)
	if own {
		_ = m.resize(&q.partBytes, q.partBytes-b.bytes)
	}
}

// save stores the blocks of a prompt that a run has completed.
func (n *node) save(e *epoch, c *plan.Run) {
	q, own := n.seqs[c.Seq], e.heads()
	if own.Len() == 0 {
		return
	}
	for i, id := range c.Save {
		b := n.blocks[id]
		if b == nil {
			at := c.SaveFrom + i
			b = &block{at: at, holders: 1}
			for h := own.Lo; h < own.Hi; h++ {
				b.cells[h] = q.part[h][at*tensor.BlockSlots : (at+1)*tensor.BlockSlots]
			}
			b.bytes, _ = kvcache.SegmentBytes(geometry, own.Len())
			n.memory.used += b.bytes // the sequence's own bytes shrink in a moment
			n.blocks[id] = b
		} else {
			n.w.cover[BlockTwice]++
		}
		q.hold(&n.memory, b, true)
		n.write(e, id, c.Keys, i)
	}
}

// cache is a cache that decode reads, or its replica.
type cache struct {
	slots  [heads][]cell
	bytes  int64
	tokens int             // committed tokens
	undo   [][heads][]cell // the state before each row of the last step
}

func (q *sequence) prompt() int { return q.open.Read }

func (q *sequence) release(m *memory) {
	_ = m.resize(&q.partBytes, 0)
	_ = m.resize(&q.own.bytes, 0)
	_ = m.resize(&q.copy.bytes, 0)
	q.unshare(m)
}

// resident is the size of a replica of n tokens.
func (q *sequence) resident(n int) int64 {
	return kvcache.ResidentBytes(geometry, q.prompt(), n, q.policy)
}

// takes is the size of one of its caches without the shared blocks.
func (q *sequence) takes(c *cache, n int) int64 {
	if c == &q.own {
		return q.resident(n) - q.sharedBytes()
	}
	return q.resident(n)
}

// undoes is the size of the undo log of a step with staged tokens, beyond that of one token.
func (q *sequence) undoes(n, staged int) int64 {
	return kvcache.StepBytes(geometry, q.prompt(), n, staged, q.policy) - q.resident(n)
}

// record adds tokens to the history of the owner.
func (q *sequence) record(tokens []int32, from int) {
	for i, t := range tokens {
		q.seen.add(t, from+i >= q.open.Read-q.open.Sampled)
	}
}

// feed records the token of a decode row, which may be rolled back.
func (q *sequence) feed(token int32) {
	q.seen.add(token, true)
	q.fed = append(q.fed, token)
}

// commit commits the first tokens of the cache and rolls the later ones back.
func (q *sequence) commit(w *world, m *memory, tokens int) error {
	for _, c := range [...]*cache{&q.own, &q.copy} {
		n := tokens - c.tokens
		if c.tokens == 0 {
			continue
		}
		if n < 0 || n > len(c.undo) {
			return fmt.Errorf("socket: sequence %d: %d tokens are to count, of %d and %d of the last step",
				q.open.Seq, tokens, c.tokens, len(c.undo))
		}
		if n < len(c.undo) {
			c.slots = c.undo[n]
			w.cover[UndoneToken]++
		}
		for i := n; c == &q.own && i < len(q.fed); i++ {
			q.seen.remove(q.fed[i])
		}
		c.tokens, c.undo, q.fed = tokens, nil, nil
		_ = m.resize(&c.bytes, q.takes(c, tokens))
	}
	return nil
}

// write writes the cells of a token, one per head, to a cache.
func (c *cache) write(q *sequence, cells [heads]cell) {
	var before [heads][]cell
	for h := range heads {
		before[h] = append([]cell(nil), c.slots[h]...)
		c.slots[h] = put(q.policy, c.slots[h], q.prompt(), cells[h])
	}
	c.undo = append(c.undo, before)
}

// do carries out effects.
func (n *node) do(e *epoch, effects []machine.Effect) error {
	m := &n.memory
	for _, f := range effects {
		q := n.seqs[f.Seq]
		var err error
		switch f.Do {
		case machine.DoCommit:
			err = q.commit(n.w, m, f.Tokens)
		case machine.DoRelease:
			if q != nil {
				q.release(m)
				delete(n.seqs, f.Seq)
			}
		case machine.DoKeep:
			if q == nil {
				break
			}
			b := &block{at: f.Tokens, holders: 1}
			for h := range heads {
				b.cells[h] = q.own.slots[h][f.Tokens*tensor.BlockSlots : (f.Tokens+1)*tensor.BlockSlots]
			}
			b.bytes, _ = kvcache.SegmentBytes(geometry, heads)
			m.used += b.bytes
			n.blocks[f.Block] = b
			b.holders++
			q.shared = append(q.shared, b)
			_ = m.resize(&q.own.bytes, q.own.bytes-b.bytes)
			n.w.cover[BlockOfAnswer]++
			n.write(e, f.Block, f.Keys, 0)
		case machine.DoEvict:
			if b := n.blocks[f.Block]; b != nil {
				m.drop(b)
				delete(n.blocks, f.Block)
			}
			delete(n.coming, f.Block)
		case machine.DoDropReplica:
			_ = m.resize(&q.copy.bytes, 0)
			q.copy, q.replica = cache{}, -1
		case machine.DoOpen, machine.DoResume:
			err = n.open(e, q, f)
		case machine.DoReplicate:
			if q.replica = f.Rank; f.Rank == e.rank {
				q.copy.tokens = f.Tokens
				err = m.resize(&q.copy.bytes, q.resident(f.Tokens))
			}
		case machine.DoReservePrompt:
			err = m.resize(&q.partBytes, max(q.partBytes, kvcache.PrefillBytes(geometry, e.heads().Len(), f.Tokens, q.policy)-q.sharedBytes()))
		case machine.DoOpenCache:
			bytes := q.resident(f.Tokens)
			if q.policy.KeepsPrompt() { // the blocks of its own heads are adopted, so they are counted already
				bytes -= kvcache.PrefillBytes(geometry, e.heads().Len(), f.Tokens, q.policy)
			}
			err = m.resize(&q.own.bytes, bytes)
		case machine.DoReserveCache:
			for _, c := range [...]*cache{&q.own, &q.copy} {
				if err == nil && c.tokens > 0 {
					err = m.resize(&c.bytes, max(c.bytes, q.takes(c, f.Tokens)+q.undoes(f.Tokens, f.Tokens-c.tokens)))
				}
			}
		}
		if err != nil {
			return fmt.Errorf("socket: %v: %w", f, err)
		}
	}
	return nil
}

// open starts a sequence, with its kept cache if it continues here.
func (n *node) open(e *epoch, kept *sequence, f machine.Effect) error {
	q := &sequence{open: f.Open, policy: f.Open.Policy, replica: f.Open.Replica}
	n.seqs[f.Seq] = q
	if f.Do == machine.DoOpen {
		for _, id := range f.Open.Shared {
			n.w.cover[Warm]++
			b := n.block(id)
			if b == nil {
				if e.heads().Len() > 0 {
					return fmt.Errorf("socket: no block %d", id)
				}
				continue
			}
			for h := range heads {
				q.part[h] = append(q.part[h], b.cells[h]...)
			}
			q.hold(&n.memory, b, false)
		}
		q.record(f.Open.Prefix, 0)
		return nil
	}
	c := kept.own
	if c.tokens == 0 {
		c = kept.copy
		n.w.cover[ResumedReplica]++
	}
	n.w.cover[Resumed]++
	q.shared = kept.shared
	if f.Open.Owner == e.rank {
		q.own = c
		q.record(f.Open.Resume, 0)
	} else {
		q.copy = c
	}
	return q.commit(n.w, &n.memory, f.Tokens)
}

// seal ends the hand-over of a prompt: adopted blocks change hands, and the rest of the prompt is
// freed.
func (q *sequence) seal(m *memory, owner bool) {
	part := q.partBytes
	_ = m.resize(&q.partBytes, 0)
	if owner {
		q.own.tokens = q.prompt()
		if q.policy.KeepsPrompt() {
			_ = m.resize(&q.own.bytes, q.own.bytes+part)
		}
	}
	if !owner || !q.policy.KeepsPrompt() {
		q.unshare(m)
	}
	q.part = [heads][]cell{}
}

// heads are the KV heads for which a rank reads prompts.
func (e *epoch) heads() topology.Range { return e.place.Slices[e.rank].KVHeads }
