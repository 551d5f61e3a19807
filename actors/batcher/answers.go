package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// What a sequence was told begins the next turn of its conversation. Its rows are those that
// prefill would write, under policies that are rebuilt by it, but they lie on the owner, of all
// heads. On one socket that is the place: the blocks stay. On several the sequence is held when it
// has ended, until each socket has brought in its heads' rows of the blocks that the answer has
// filled: beside the steps, in memory that nobody else needs.

// keep leaves what a sequence was told to the cache. held: it has its memory until endFetch.
func (s *State) keep(r *request) (held bool) {
	switch {
	case r.phase != decoding || s.cfg.NoPrefixCache || r.NoCache || s.cfg.Geometry.Windows != nil || !r.Policy.RebuildsByPrefill():
		return false
	case len(s.ledger.sockets) > 1:
		return s.spread(r)
	}
	s.keepHere(r)
	return false
}

func (s *State) keepHere(r *request) {
	k := plan.Keep{Seq: r.seq, From: len(r.pins)}
	var parent *textBlock
	if k.From > 0 {
		parent = r.pins[k.From-1]
	}
	for at := k.From; (at+1)*tensor.BlockSlots <= r.cached-r.staged && (parent == nil || parent.cached); at++ {
		name, id := s.keyOf(r, at), uint64(0)
		b := s.prefix.blocks[name]
		if b == nil {
			b = s.shareNew(r, name, parent)
			id, b.ready = b.id, true
			s.prefix.settle(b)
			s.prefixTotals.Answers += tensor.BlockSlots
		}
		s.prefix.use(b)
		k.Blocks, parent = append(k.Blocks, id), b
	}
	if len(k.Blocks) > 0 {
		k.Keys = s.named(r, k.From, len(k.Blocks))
		s.prefix.kept = append(s.prefix.kept, k)
	}
}

// spread has all sockets bring in the blocks that an answer has filled, if the cache still has
// those of its prompt. Who asks for the text meanwhile waits for them (see comes).
func (s *State) spread(r *request) bool {
	chain, to := slices.Clone(r.pins), (r.cached-r.staged)/tensor.BlockSlots
	if n := len(chain); n < len(r.Prompt)/tensor.BlockSlots || n > 0 && !chain[n-1].cached || s.now < s.spreadAfter || s.fetchesOf(true) >= maxFetches {
		return false
	}
	for ; len(chain) < to; chain = append(chain, s.prefix.blocks[s.keyOf(r, len(chain))]) { // others have said the same
		if b := s.prefix.blocks[s.keyOf(r, len(chain))]; b == nil || !b.ready {
			break
		}
	}
	f := &fetch{r: r, seq: r.seq, from: len(chain)}
	for at := f.from; at < to; at++ {
		f.keys = append(f.keys, s.keyOf(r, at))
	}
	if len(f.keys) == 0 {
		return false
	}
	if s.book(f, chain); len(f.fresh) == 0 {
		for _, b := range chain {
			s.pinAll(b, -1)
		}
		return false
	}
	s.fetches = append(s.fetches, f)
	blocks := 0 // they come one after the other
	for _, o := range s.fetches {
		if o.seq != 0 {
			blocks += len(o.fresh)
		}
	}
	s.ask(f, s.patience(blocks))
	return true
}
