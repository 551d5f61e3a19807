package batcher

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The prefix cache. While a prompt is read, each socket holds its own heads' rows of it in
// blocks of tensor.BlockSlots tokens. The full ones are shared by all prompts that begin
// with the same tokens, and stay when nobody uses them, in memory that is free. What is
// found, kept and evicted is decided here alone: every socket holds the same blocks, and the
// ledger knows their bytes. See docs/decisions/prefix-cache.md.

// textBlock is a block of a text that every socket holds, each the rows of its heads.
type textBlock struct {
	id      uint64
	key     plan.Key
	parent  *textBlock
	tokens  int     // of the text, up to its end
	after   int     // cached blocks that follow it
	cached  bool    // it can be found
	ready   bool    // the step that writes it is done
	sums    bool    // sums of attention lie beside it,
	summed  bool    // and the step that wrote them is done
	behind  bool    // in prefixes.behind
	step    uint64  // the last whose plan names it: that plan cannot evict it
	pins    []int32 // by rank: sequences that hold its rows
	uses    int64
	value   int64 // see prefixes.use
	touched uint64
	at      int // in leaves; none: it is not there
}

// prefixes are the blocks that can be found.
type prefixes struct {
	root     plan.Key
	blocks   map[plan.Key]*textBlock
	leaves   leaves
	clock    int64 // value of the last block that was evicted
	touches  uint64
	evicted  []uint64    // the next plan says so
	told     int         // of these, so many were said without a step
	kept     []plan.Keep // and of sequences that have ended
	keptTold int
	unsummed []uint64     // the next plan drops their sums
	behind   []*textBlock // sums of conversations that have later ones: the first to go
	empty    bool         // all blocks are to be evicted when no step is in flight
}

// PrefixTotals are tokens since the start.
type PrefixTotals struct {
	Queries  uint64 // of prompts that were looked up, at their first admission
	Hits     uint64 // of these, those that were found
	Evicted  uint64 // tokens in blocks that were evicted
	Restored uint64 // tokens in blocks that came from disks
	Late     uint64 // times that disks were too slow to be waited for
	Answers  uint64 // tokens in blocks that answers filled and that stayed
}

func newPrefixes(identity string) prefixes {
	return prefixes{root: sha256.Sum256([]byte("shoal prefix 1\x00" + identity)), blocks: map[plan.Key]*textBlock{}}
}

// clear forgets all blocks: the sockets of an epoch that is over have dropped them.
func (c *prefixes) clear() { *c = prefixes{root: c.root, blocks: map[plan.Key]*textBlock{}} }

// keyOf is the key of a block of the request's tokens, which must be there.
func (s *State) keyOf(r *request, at int) plan.Key {
	for len(r.keys) <= at {
		h := sha256.New()
		if n := len(r.keys); n > 0 {
			h.Write(r.keys[n-1][:])
		} else {
			salt := sha256.Sum256([]byte(r.Salt))
			h.Write(s.prefix.root[:])
			h.Write(salt[:])
		}
		var tokens [4 * tensor.BlockSlots]byte
		for i := range tensor.BlockSlots {
			binary.LittleEndian.PutUint32(tokens[4*i:], uint32(r.token(len(r.keys)*tensor.BlockSlots+i)))
		}
		h.Write(tokens[:])
		r.keys = append(r.keys, plan.Key(h.Sum(nil)))
	}
	return r.keys[at]
}

// sharable is how many blocks of what is to be read may come from the cache.
func (s *State) sharable(r *request, read int) int {
	if s.cfg.NoPrefixCache || r.NoCache {
		return 0
	}
	n := r.Policy.Warm(read)
	if r.PromptLogprobs >= 0 && r.scored < len(r.Prompt)-1 {
		n = min(n, r.scored) // the rows that score the others have to be computed
	}
	return n / tensor.BlockSlots
}

// find is the chain of cached blocks that a request may begin with.
func (s *State) find(r *request, read int) (chain []*textBlock) {
	for n := s.sharable(r, read); len(chain) < n; {
		b := s.prefix.blocks[s.keyOf(r, len(chain))]
		if b == nil || !b.ready {
			break
		}
		chain = append(chain, b)
	}
	for n := len(chain); n > 0 && r.Policy.Needs.PromptAttention && !chain[n-1].summed; n-- {
		chain = chain[:n-1]
	}
	return chain
}

// awaits is the sequence that is about to read the next block which a waiting request lacks, or
// the context that it could begin as a fork of: then the request does better to wait for that. It
// waits so for one other at most.
func (s *State) awaits(r *request) (seq uint64) {
	read := r.toRead()
	n := s.sharable(r, read)
	for _, v := range s.running {
		if v.phase == prefill && (r.awaited == 0 || r.awaited == v.seq) && s.contexts.matches(r, v, read) {
			return v.seq
		}
		if r.Policy.Needs.PromptAttention {
			if end := r.awaitsSums(v); end > 0 && end <= n*tensor.BlockSlots {
				at := end/tensor.BlockSlots - 1
				next := s.keyOf(v, at)
				if b := s.prefix.blocks[next]; next == s.keyOf(r, at) && (b == nil || !b.summed) && len(s.find(r, read)) <= at {
					return v.seq
				}
			}
			continue
		}
		at := v.cached / tensor.BlockSlots // what it has read, of it all blocks are shared
		if at >= n || len(v.pins) < at || v.phase != prefill || v.ended || !v.saves || v.read/tensor.BlockSlots <= at || r.awaited != 0 && r.awaited != v.seq {
			continue
		}
		next := s.keyOf(v, at)
		if b := s.prefix.blocks[next]; next == s.keyOf(r, at) && (b == nil || !b.ready) {
			return v.seq
		}
	}
	return 0
}

// use notes that a block was used: its value is how often, above that of the last block
// which was evicted, so that what was popular once goes in the end (GreedyDual-Size with
// frequency; all blocks have one size and take about as long to read).
func (c *prefixes) use(b *textBlock) {
	c.touches++
	b.uses++
	b.value, b.touched = c.clock+b.uses, c.touches
	if b.at != none {
		heap.Fix(&c.leaves, b.at)
	}
}

// save shares the full blocks that a chunk completes, or takes those that another prompt
// has completed in place of the request's own. A request that cannot share a block shares
// none behind it.
func (s *State) save(c *plan.Run, r *request) {
	c.SaveFrom = len(r.pins)
	for at := len(r.pins); r.saves && (at+1)*tensor.BlockSlots <= c.Start+len(c.Tokens); at++ {
		var parent *textBlock
		if at > 0 {
			parent = r.pins[at-1]
		}
		if parent != nil && !parent.cached {
			r.saves = false // evicted meanwhile
			return
		}
		name := s.keyOf(r, at)
		b := s.prefix.blocks[name]
		if b != nil {
			r.twice++ // until the step is done it has rows of its own as well
		} else {
			if !s.hasWindows() || parent != nil && !parent.cached {
				r.saves = false
				return
			}
			b = s.shareNew(r, name, parent)
		}
		s.prefix.use(b)
		b.step = s.steps + 1
		s.ledger.share(r, b)
		c.Save = append(c.Save, b.id)
	}
	if len(c.Save) > 0 {
		c.Keys = s.named(r, c.SaveFrom, len(c.Save))
	}
	s.saveSums(c, r)
}

// named are the keys by which disks keep blocks of a text, after that of the block before them.
func (s *State) named(r *request, from, blocks int) (keys []plan.Key) {
	if !s.disk {
		return nil
	}
	if from == 0 {
		keys = append(keys, plan.Key{})
	}
	for at := max(0, from-1); at < from+blocks; at++ {
		keys = append(keys, s.keyOf(r, at))
	}
	return keys
}

// shareNew gives a block of the request's own to the cache, behind its parent.
func (s *State) shareNew(r *request, name plan.Key, parent *textBlock) *textBlock {
	b := s.newBlock(name, parent)
	s.ledger.took(r, 1)
	return b
}

// newBlock is a block that the cache has, behind its parent; its rows are about to come.
func (s *State) newBlock(name plan.Key, parent *textBlock) *textBlock {
	s.blockIDs++
	b := &textBlock{id: s.blockIDs, key: name, parent: parent, tokens: tensor.BlockSlots, cached: true, pins: make([]int32, len(s.ledger.sockets)), at: none}
	s.prefix.blocks[name] = b
	if parent != nil {
		b.tokens += parent.tokens
		parent.after++
		s.prefix.settle(parent)
	}
	s.ledger.cache(b)
	return b
}

// hasWindows makes room for one block's rows of layers with a window, which a prompt that
// is read would have freed.
func (s *State) hasWindows() bool {
	for i := range s.ledger.sockets {
		if !s.makeFree(i, s.ledger.sockets[i].window) {
			return false
		}
	}
	return true
}

// saved: the step that wrote a chunk's blocks is done.
func (s *State) saved(c *plan.Run, r *request) {
	s.ledger.took(r, r.twice)
	r.twice = 0
	for i := range c.Save {
		b := r.pins[c.SaveFrom+i]
		b.ready = true
		s.prefix.settle(b)
	}
	if c.Sums {
		s.savedSums(r)
	}
}

// settle puts a block among the leaves, or takes it from there.
func (c *prefixes) settle(b *textBlock) {
	leaf := b.cached && b.ready && b.after == 0
	switch {
	case leaf && b.at == none:
		heap.Push(&c.leaves, b)
	case !leaf && b.at != none:
		heap.Remove(&c.leaves, b.at)
	}
}

// makeFree evicts until so many bytes are free on a socket. Nothing behind a block is of
// use without it, so the last of a text goes first.
func (s *State) makeFree(rank int, bytes int64) bool {
	for s.ledger.sockets[rank].free() < bytes {
		if !s.evict(rank) {
			return false
		}
	}
	return true
}

// evict drops the block of least value whose end frees bytes on a socket, or the sums beside it. False: none does.
func (s *State) evict(rank int) bool {
	if s.evictSums(rank) {
		return true
	}
	var passed []*textBlock
	var gone *textBlock
	for gone == nil && len(s.prefix.leaves) > 0 {
		b := heap.Pop(&s.prefix.leaves).(*textBlock)
		if b.step == s.steps+1 || s.ledger.gain(b, rank) == 0 {
			passed = append(passed, b)
			continue
		}
		gone = b
	}
	for _, b := range passed {
		heap.Push(&s.prefix.leaves, b)
	}
	switch {
	case gone == nil:
		return false
	case gone.sums: // they would go with it; the rows may be of use to others still
		heap.Push(&s.prefix.leaves, gone)
		s.dropSums(gone)
		return true
	}
	s.prefix.clock = max(s.prefix.clock, gone.value)
	s.drops(gone)
	return true
}

// drops makes a leaf unfindable. Sequences that hold its rows keep them.
func (s *State) drops(b *textBlock) {
	s.ledger.uncache(b)
	delete(s.prefix.blocks, b.key)
	b.cached = false
	s.prefix.settle(b)
	s.prefix.evicted = append(s.prefix.evicted, b.id)
	s.prefixTotals.Evicted += tensor.BlockSlots
	if p := b.parent; p != nil {
		p.after--
		s.prefix.settle(p)
	}
	b.parent = nil
}

// reset empties the cache.
func (s *State) reset() {
	s.prefix.empty, s.prefix.behind = false, nil
	for s.giveUpFetch() {
	}
	for len(s.prefix.leaves) > 0 {
		s.drops(heap.Pop(&s.prefix.leaves).(*textBlock))
	}
}

// leaves are blocks that may be evicted, the least valuable first, the longest unused of
// equals.
type leaves []*textBlock

func (l leaves) Len() int { return len(l) }
func (l leaves) Less(i, j int) bool {
	if l[i].value != l[j].value {
		return l[i].value < l[j].value
	}
	return l[i].touched < l[j].touched
}
func (l leaves) Swap(i, j int) { l[i], l[j] = l[j], l[i]; l[i].at, l[j].at = i, j }
func (l *leaves) Push(x any)   { b := x.(*textBlock); b.at = len(*l); *l = append(*l, b) }
func (l *leaves) Pop() any {
	last := len(*l) - 1
	b := (*l)[last]
	(*l)[last], *l = nil, (*l)[:last]
	b.at = none
	return b
}

// The ledger's part: bytes of blocks are booked once, as long as the cache or a sequence
// has them. A sequence holds what is its own besides.

// share makes a request a holder of a block on every socket.
func (l *ledger) share(r *request, b *textBlock) {
	for i := range l.sockets {
		l.pin(b, i)
	}
	r.pins = append(r.pins, b)
}

// took gives back what so many blocks of the request's own took, which the cache has now.
func (l *ledger) took(r *request, blocks int) {
	for i := range l.sockets {
		bytes := int64(blocks) * l.sockets[i].core
		r.hold[i] -= bytes
		l.sockets[i].reserved -= bytes
	}
}

func (l *ledger) pin(b *textBlock, rank int) {
	if b.pins[rank] == 0 && b.cached {
		l.sockets[rank].evictable -= l.sockets[rank].core
	}
	b.pins[rank]++
}

func (l *ledger) unpin(b *textBlock, rank int) {
	a := &l.sockets[rank]
	if b.pins[rank]--; b.pins[rank] > 0 {
		return
	}
	if b.cached {
		a.evictable += a.core
	} else {
		a.shared -= a.core
	}
}

// cache books a new block.
func (l *ledger) cache(b *textBlock) {
	for i := range l.sockets {
		a := &l.sockets[i]
		a.shared += a.core + a.window
		a.evictable += a.core + a.window
	}
}

// uncache gives back what the end of a block frees.
func (l *ledger) uncache(b *textBlock) {
	for i := range l.sockets {
		bytes := l.gain(b, i)
		l.sockets[i].shared -= bytes
		l.sockets[i].evictable -= bytes
	}
	b.sums, b.summed = false, false
}

// gain is what the end of a cached block frees on a socket.
func (l *ledger) gain(b *textBlock, rank int) int64 {
	bytes := l.sockets[rank].window + l.sumsBytes(b, rank)
	if b.pins[rank] == 0 {
		bytes += l.sockets[rank].core
	}
	return bytes
}

// sharedBytes is what a request's owner holds of blocks beyond r.hold.
func (l *ledger) sharedBytes(r *request) int64 {
	return int64(len(r.pins)) * l.sockets[r.owner].core
}
