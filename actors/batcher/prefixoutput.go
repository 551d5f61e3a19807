package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Blocks of generated tokens. A prompt and its output are the beginning of the conversation's next
// turn. With policies that rebuild by prefill, the rows of the output equal those of a prefill. But
// only the owner has them, with all heads. With one socket they stay there. With several, the ended
// sequence keeps its memory until each socket has fetched the rows of its heads. That happens while
// steps run, in memory that is otherwise unused. With recurrent states, the last of the blocks gets the
// copy of the states (answerstates.go); without a copy no block is kept.

// keepOutput moves the blocks of an ended sequence to the cache. held reports that the sequence
// keeps its memory until endFetch.
func (c *prefixCache) keepOutput(r *request) (held bool) {
	switch {
	case r.phase != decoding || !c.keepsOutput(r) || c.outputEnd(r) == 0:
		return false
	case len(c.s.ledger.sockets) > 1:
		return c.spread(r)
	}
	c.keepHere(r)
	return false
}

// keepsOutput reports whether the cache can keep the output of a request.
func (c *prefixCache) keepsOutput(r *request) bool {
	return !r.NoCache && r.Prefill == 0 && c.s.cfg.Geometry.Windows == nil && r.Policy.RebuildsByPrefill()
}

// outputEnd returns the number of tokens that the blocks of an ended sequence have.
func (c *prefixCache) outputEnd(r *request) int {
	if c.recurrent() {
		return r.prefix.copy.after
	}
	return (r.cached - r.staged) / tensor.BlockSlots * tensor.BlockSlots
}

func (c *prefixCache) keepHere(r *request) {
	k, end := plan.Keep{Seq: r.seq, From: len(r.prefix.blocks)}, c.outputEnd(r)
	var parent *textBlock
	if k.From > 0 {
		parent = r.prefix.blocks[k.From-1]
	}
	for at := k.From; (at+1)*tensor.BlockSlots <= end && (parent == nil || parent.cached); at++ {
		name, id := c.keyOf(r, at), uint64(0)
		b := c.blocks[name]
		if b == nil {
			b = c.shareNew(r, name, parent)
			id, b.ready = b.id, true
			c.settle(b)
			c.totals.Answers += tensor.BlockSlots
		}
		c.use(b)
		k.Blocks, parent = append(k.Blocks, id), b
	}
	if parent != nil && parent.cached && parent.tokens == r.prefix.copy.after && c.keepCopy(r, parent) {
		k.Snapshot = parent.id
	}
	if len(k.Blocks) > 0 || k.Snapshot != 0 {
		k.Keys = c.diskKeys(r, k.From, len(k.Blocks))
		c.kept.Add(k)
	}
}

// spread makes all sockets fetch the blocks of an output, if the cache still has the blocks of its
// prompt. A request with the same text waits for them (see incoming).
func (c *prefixCache) spread(r *request) bool {
	chain, to := slices.Clone(r.prefix.blocks), c.outputEnd(r)/tensor.BlockSlots
	if n := len(chain); n < len(r.Prompt)/tensor.BlockSlots || n > 0 && !chain[n-1].cached || c.s.now < c.spreadAfter || c.fetchesOf(true) >= maxFetches {
		return false
	}
	for ; len(chain) < to; chain = append(chain, c.blocks[c.keyOf(r, len(chain))]) { // another sequence had the same output
		if b := c.blocks[c.keyOf(r, len(chain))]; b == nil || !b.ready {
			break
		}
	}
	f := &fetch{r: r, seq: r.seq, from: len(chain)}
	for at := f.from; at < to; at++ {
		f.keys = append(f.keys, c.keyOf(r, at))
	}
	if len(f.keys) == 0 {
		return false
	}
	asked := len(f.keys)
	c.book(f, chain)
	if n := len(f.coming); n > 0 && c.recurrent() && (n < asked || !c.bookExtras(f.coming[n-1], snapshot)) {
		c.endFetch(f, 0)
		return true
	}
	if len(f.coming) == 0 {
		for _, b := range chain {
			c.pinAll(b, -1)
		}
		return false
	}
	c.fetches = append(c.fetches, f)
	blocks := 0 // the owner sends them one after another
	for _, o := range c.fetches {
		if o.seq != 0 {
			blocks += len(o.coming)
		}
	}
	c.ask(f, c.fetchTimeout(blocks))
	return true
}
