package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Blocks in files. Every socket writes its rows of saved blocks to files while steps run (see
// internal/engine/kvcache/tier). Before a prompt is read, the sockets are asked how many of its
// blocks they have. Then the ledger reserves memory for them, and the request waits while others
// are admitted, but never longer than reading the prompt would take. A block that is late is a miss.

// Disk asks all sockets for blocks of a text: from their disks, or from the owner of a sequence
// that has ended. A DiskDone answers it.
type Disk struct {
	Number uint64
	Seq    uint64     // the owner of this sequence has the rows of all heads; 0: disks have them
	Owner  int        // rank
	From   int        // number of the first block in its text
	Before plan.Key   // of the block before the first
	Keys   []plan.Key // of the blocks
	Blocks []uint64   // their IDs from now on; none: the answer is how many the sockets have
	Step   uint64     // a socket that has begun a later step ignores it
	Millis int64      // until the answer counts as late
}

// DiskDone answers a Disk: the number of the first blocks that every socket has.
type DiskDone struct {
	Number uint64
	Blocks int
}

func (DiskDone) input() {}

const (
	maxFetches  = 8
	lookMillis  = 250    // to ask which blocks there are, which reads no file
	fetchMillis = 500    // the least time to read
	slowMillis  = 30_000 // after a late answer nothing is asked for this long
)

// fetch brings in blocks for a request that waits, or of a sequence that has ended.
type fetch struct {
	r      *request
	number uint64 // of the Disk that has no answer yet; 0: it has one
	until  int64
	seq    uint64 // of the ended sequence, see prefixoutput.go; 0: from disks
	from   int    // number of the first block in its text
	keys   []plan.Key
	there  int          // the number of blocks that all disks have
	chain  []*textBlock // cached blocks before those, pinned meanwhile
	coming []*textBlock // the blocks that come; none while the disks are asked what they have
}

// restoreAll asks for the blocks that all disks have. It runs between steps.
func (c *prefixCache) restoreAll() {
	for _, f := range slices.Clone(c.fetches) {
		if f.there > 0 && len(f.coming) == 0 {
			c.restore(f)
		}
	}
}

// lookAll asks the disks which blocks they have of the prompts that are admitted next.
func (c *prefixCache) lookAll() {
	if !c.disk {
		return
	}
	for _, r := range c.s.waiting {
		if c.fetchesOf(false) >= maxFetches || c.s.full() || c.s.now < c.diskAfter {
			return
		}
		if r.unfit != "" || r.unread || r.prefix.asked || r.Policy.Needs.PromptAttention || c.s.awaits(r) != 0 || c.comes(r) {
			continue
		}
		read, tokens := r.asks()
		if _, _, why := c.s.ledger.choose(r.Policy, read, tokens, 0, r.canOwn); why != "" {
			return
		}
		r.prefix.asked = true
		n, at := c.sharable(r, read), len(c.find(r, read))
		if at >= n {
			continue
		}
		f := &fetch{r: r, from: at}
		for ; at < n; at++ {
			f.keys = append(f.keys, c.keyOf(r, at))
		}
		c.fetches = append(c.fetches, f)
		c.ask(f, lookMillis)
	}
}

func (c *prefixCache) ask(f *fetch, millis int64) {
	c.asks++
	f.number, f.until = c.asks, c.s.now+millis
	d := Disk{Number: f.number, Seq: f.seq, Owner: f.r.owner, From: f.from, Keys: f.keys, Millis: millis}
	if f.from > 0 {
		d.Before = c.keyOf(f.r, f.from-1)
	}
	for _, b := range f.coming {
		d.Blocks = append(d.Blocks, b.id)
	}
	c.s.out.Disk = append(c.s.out.Disk, d)
}

// restore reserves memory for blocks, and asks for them.
func (c *prefixCache) restore(f *fetch) {
	chain := c.find(f.r, f.r.toRead())
	last := f.from + f.there
	if f.r.phase != waiting || f.r.ended || len(chain) < f.from || len(chain) >= last {
		c.endFetch(f, 0)
		return
	}
	f.keys, f.from = f.keys[len(chain)-f.from:f.there], len(chain)
	if c.book(f, chain); len(f.coming) == 0 {
		c.endFetch(f, 0)
		return
	}
	c.ask(f, c.patience(len(f.coming)))
}

// book reserves memory for the blocks that follow a chain, as far as there is some. Until the
// fetch ends none of them is evicted, because each block of the chain has a child.
func (c *prefixCache) book(f *fetch, chain []*textBlock) {
	f.chain = chain
	steps := make([]uint64, len(chain))
	var parent *textBlock
	for i, b := range chain {
		c.pinAll(b, 1)
		steps[i], b.step, parent = b.step, c.s.steps+1, b
	}
	for _, name := range f.keys {
		if c.blocks[name] != nil || !c.reserveBlock() {
			break
		}
		b := c.newBlock(name, parent)
		c.pinAll(b, 1)
		f.coming, parent = append(f.coming, b), b
	}
	for i, b := range chain {
		b.step = steps[i]
	}
	f.keys = f.keys[:len(f.coming)]
}

// patience is how many milliseconds to wait for blocks: at most about as long as prefill needs
// for their tokens.
func (c *prefixCache) patience(blocks int) int64 {
	millis := c.s.cfg.DiskMillis
	if c.s.rate.perSecond > 0 {
		millis = min(millis, max(fetchMillis, int64(blocks*tensor.BlockSlots)*1000/c.s.rate.perSecond))
	}
	return millis
}

// reserveBlock makes room for a block on every socket.
func (c *prefixCache) reserveBlock() bool {
	for i := range c.s.ledger.sockets {
		if a := &c.s.ledger.sockets[i]; !c.s.makeFree(i, a.block+a.windowed) {
			return false
		}
	}
	return true
}

func (c *prefixCache) pinAll(b *textBlock, by int) {
	for i := range c.s.ledger.sockets {
		if by > 0 {
			c.s.ledger.pin(b, i)
		} else {
			c.s.ledger.unpin(b, i)
		}
	}
}

// endFetches takes the answers since the last step, and ends fetches that are late. It runs
// between steps, when memory can be freed.
func (c *prefixCache) endFetches() {
	for _, d := range c.answered {
		c.answer(d)
	}
	c.answered = nil
	for _, f := range slices.Clone(c.fetches) {
		switch late := f.number != 0 && c.s.now >= f.until; {
		case late && f.seq != 0:
			c.endFetch(f, 0)
			c.spreadAfter = c.s.now + slowMillis
		case late:
			c.endFetch(f, 0)
			c.diskAfter = c.s.now + slowMillis
			c.totals.Late++
		}
	}
}

// answer takes a DiskDone. One that comes too late has no effect.
func (c *prefixCache) answer(d DiskDone) {
	for _, f := range c.fetches {
		switch {
		case f.number != d.Number || f.number == 0:
		case len(f.coming) > 0 || d.Blocks <= 0:
			c.endFetch(f, min(d.Blocks, len(f.coming)))
			return
		default:
			f.number, f.there = 0, min(d.Blocks, len(f.keys))
		}
	}
}

// endFetch ends a fetch of which the first blocks arrived. Those can be found from now on. The
// others are dropped, unless another prompt has written them or writes them in the next step. A
// question that no socket has got yet is withdrawn: a socket could get it after the step that drops
// the blocks, and would keep them.
func (c *prefixCache) endFetch(f *fetch, came int) {
	c.s.out.Disk = slices.DeleteFunc(c.s.out.Disk, func(d Disk) bool { return d.Number == f.number })
	for _, b := range f.chain {
		c.pinAll(b, -1)
	}
	for i, b := range f.coming {
		c.pinAll(b, -1)
		if i < came {
			b.ready = true
			c.use(b)
			if f.seq != 0 {
				c.totals.Answers += tensor.BlockSlots
			} else {
				c.totals.Restored += tensor.BlockSlots
			}
		}
	}
	for _, b := range slices.Backward(f.coming) {
		if written := b.step == c.s.steps+1; !b.ready && b.after == 0 && !written {
			c.drop(b)
		}
		c.settle(b)
	}
	if f.seq != 0 {
		c.s.ledger.release(f.r)
		c.s.release.add(f.seq)
	}
	c.fetches = slices.DeleteFunc(c.fetches, func(o *fetch) bool { return o == f })
}

// fetching says whether a request waits for blocks.
func (c *prefixCache) fetching(r *request) bool {
	return slices.ContainsFunc(c.fetches, func(f *fetch) bool { return f.r == r })
}

// comes says whether the next block that a request lacks is on its way for another request.
func (c *prefixCache) comes(r *request) bool {
	if len(c.fetches) == 0 || r.Policy.Needs.PromptAttention {
		return false
	}
	read := r.toRead()
	at := len(c.find(r, read))
	if at >= c.sharable(r, read) {
		return false
	}
	b := c.blocks[c.keyOf(r, at)]
	return b != nil && slices.ContainsFunc(c.fetches, func(f *fetch) bool { return slices.Contains(f.coming, b) })
}

// delays says whether blocks that a request begins with are on their way.
func (c *prefixCache) delays(r *request) bool { return c.fetching(r) || c.comes(r) }

// limit gives up fetches of ended sequences while a socket would hold too many sequences.
func (c *prefixCache) limit() {
	for len(c.s.running)+c.fetchesOf(true) >= c.s.cfg.TokenBudget-1 && c.giveUp(true) {
	}
}

// giveUpFetch ends one fetch to free its memory: a fetch of an ended sequence first, the newest
// first. It returns false when there is none.
func (c *prefixCache) giveUpFetch() bool { return c.giveUp(true) || c.giveUp(false) }

func (c *prefixCache) giveUp(output bool) bool {
	for _, f := range slices.Backward(c.fetches) {
		if len(f.coming) > 0 && (f.seq != 0) == output {
			c.endFetch(f, 0)
			return true
		}
	}
	return false
}

// fetchesOf counts the fetches of ended sequences (output), or the others.
func (c *prefixCache) fetchesOf(output bool) (n int) {
	for _, f := range c.fetches {
		if (f.seq != 0) == output {
			n++
		}
	}
	return n
}
