package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Blocks in files. Every socket writes its rows of saved blocks to files while steps run (see
// internal/engine/kvcache/tier). Before prefill of a prompt, the batcher asks the sockets how many of
// its blocks they have. Then the ledger reserves memory for them. The request waits while others are
// admitted, but never longer than prefill would take. A late block counts as a miss.

// DiskDone answers a Disk with the number of leading blocks that every socket has.
type DiskDone struct {
	Number uint64
	Blocks int
}

const (
	maxFetches  = 8
	lookMillis  = 250    // for a lookup, which reads no file
	fetchMillis = 500    // minimum time for a read
	slowMillis  = 30_000 // pause after a late answer
)

// fetch reads blocks for a waiting request, or of an ended sequence.
type fetch struct {
	r      *request
	number uint64 // number of the unanswered Disk; 0: it was answered
	until  int64
	seq    uint64 // ended sequence, see prefixoutput.go; 0: read from disks
	from   int    // number of the first block in its text
	keys   []plan.Key
	there  int          // number of blocks that all disks have
	chain  []*textBlock // cached blocks before them, pinned during the fetch
	coming []*textBlock // blocks that are being fetched; empty during a lookup
}

// restoreAll requests the blocks that all disks have. It runs between steps.
func (c *prefixCache) restoreAll() {
	for _, f := range slices.Clone(c.fetches) {
		if f.there > 0 && len(f.coming) == 0 {
			c.restore(f)
		}
	}
}

// lookAll asks the disks for the blocks of the prompts that will be admitted next.
func (c *prefixCache) lookAll() {
	if !c.disk {
		return
	}
	for _, r := range c.s.waiting {
		if c.fetchesOf(false) >= maxFetches || c.s.full() || c.s.now < c.diskAfter {
			return
		}
		if r.unfit != "" || r.unread || r.remote.Pending() || r.prefix.asked || r.Policy.Needs.PromptAttention || c.s.awaits(r) != 0 || c.incoming(r) {
			continue
		}
		if c.s.ledger.choose(r, 0).why != "" {
			return
		}
		r.prefix.asked = true
		read := r.toRead()
		n, at := c.sharable(r, read), len(c.matched(r, read))
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
	c.lastRequest++
	f.number, f.until = c.lastRequest, c.s.now+millis
	d := Disk{Number: f.number, Seq: f.seq, Owner: f.r.owner, From: f.from, Keys: f.keys, Millis: millis}
	if f.from > 0 {
		d.Before = c.keyOf(f.r, f.from-1)
	}
	for _, b := range f.coming {
		d.Blocks = append(d.Blocks, b.id)
	}
	c.s.out.Disk = append(c.s.out.Disk, d)
}

// restore reserves memory for blocks and requests them.
func (c *prefixCache) restore(f *fetch) {
	chain := c.matched(f.r, f.r.toRead())
	last := f.from + f.there
	if f.r.phase != waiting || f.r.ended || len(chain) < f.from || len(chain) >= last {
		c.endFetch(f, 0)
		return
	}
	f.keys, f.from = f.keys[len(chain)-f.from:f.there], len(chain)
	asked := len(f.keys)
	c.book(f, chain)
	if n := len(f.coming); n == 0 || c.recurrent() && (n < asked || !c.bookExtras(f.coming[n-1], snapshot)) { // the last block has the snapshot
		c.endFetch(f, 0)
		return
	}
	c.ask(f, c.fetchTimeout(len(f.coming)))
}

// book reserves memory for the blocks after a chain, as many as fit. None of the chain's blocks is
// evicted before the fetch ends, because each has a child.
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

// fetchTimeout returns the milliseconds to wait for blocks: at most about the time of a prefill of
// their tokens.
func (c *prefixCache) fetchTimeout(blocks int) int64 {
	millis := c.s.cfg.DiskMillis
	if c.s.rate.PerSecond > 0 {
		millis = min(millis, max(fetchMillis, int64(blocks*tensor.BlockSlots)*1000/c.s.rate.PerSecond))
	}
	return millis
}

// reserveBlock reserves room for a block on every socket.
func (c *prefixCache) reserveBlock() bool {
	for i := range c.s.ledger.sockets {
		if a := &c.s.ledger.sockets[i]; !c.makeFree(i, a.block+a.windowed) {
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

// endFetches processes the answers since the last step, and ends late fetches. It runs between
// steps, when memory can be freed.
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

// answer processes a DiskDone. A late one has no effect.
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

// endFetch ends a fetch whose first blocks have arrived. Those can be found from now on. The others are
// dropped, unless another prompt has written them or writes them in the next step. A request that has
// not been sent yet is withdrawn: a socket could get it after the step that drops the blocks, and would
// keep them.
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
	if n := len(f.coming); n > 0 && came == n {
		f.coming[n-1].written |= f.coming[n-1].extras & snapshot
	}
	for _, b := range slices.Backward(f.coming) {
		if written := b.step == c.s.steps+1; !b.ready && b.after == 0 && !written {
			c.drop(b)
		} else if b.written != b.extras { // its snapshot has not arrived
			c.dropExtras(b)
		}
		c.settle(b)
	}
	if f.seq != 0 {
		c.s.ledger.release(f.r)
		c.s.release.Add(f.seq)
	}
	c.fetches = slices.DeleteFunc(c.fetches, func(o *fetch) bool { return o == f })
}

// fetching reports whether a request waits for blocks.
func (c *prefixCache) fetching(r *request) bool {
	return slices.ContainsFunc(c.fetches, func(f *fetch) bool { return f.r == r })
}

// incoming reports whether the next block that a request lacks is on its way for another request.
func (c *prefixCache) incoming(r *request) bool {
	if len(c.fetches) == 0 || r.Policy.Needs.PromptAttention {
		return false
	}
	read := r.toRead()
	at := len(c.matched(r, read))
	if at >= c.sharable(r, read) {
		return false
	}
	b := c.blocks[c.keyOf(r, at)]
	return b != nil && slices.ContainsFunc(c.fetches, func(f *fetch) bool { return slices.Contains(f.coming, b) })
}

// awaitsBlocks reports whether blocks that a request begins with are on their way.
func (c *prefixCache) awaitsBlocks(r *request) bool { return c.fetching(r) || c.incoming(r) }

// limit cancels fetches of ended sequences while a socket would have too many sequences.
func (c *prefixCache) limit() {
	for len(c.s.running)+c.fetchesOf(true) >= c.s.cfg.TokenBudget-1 && c.cancelOne(true) {
	}
}

// cancelFetch cancels one fetch to free its memory: a fetch of an ended sequence first, the newest
// first. It returns false if there is none.
func (c *prefixCache) cancelFetch() bool { return c.cancelOne(true) || c.cancelOne(false) }

func (c *prefixCache) cancelOne(output bool) bool {
	for _, f := range slices.Backward(c.fetches) {
		if len(f.coming) > 0 && (f.seq != 0) == output {
			c.endFetch(f, 0)
			return true
		}
	}
	return false
}

// fetchesOf counts the fetches of ended sequences (output), or all others.
func (c *prefixCache) fetchesOf(output bool) (n int) {
	for _, f := range c.fetches {
		if (f.seq != 0) == output {
			n++
		}
	}
	return n
}
