package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/outbox"
	"github.com/shoal-llm/shoal/actors/batcher/textkeys"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// prefixCache is the module that lets prompts share their beginnings. During prefill each socket
// stores its heads' rows of the prompt in blocks of tensor.BlockSlots tokens. Prompts that begin
// with the same tokens share the full blocks. Unused blocks stay in free memory. Only this module
// decides which blocks are found, kept and evicted. So every socket has the same blocks and the
// ledger knows their bytes. See docs/decisions/prefix-cache.md.
//
// Other files: prefixdisk.go (blocks in files), prefixoutput.go (blocks of generated tokens),
// prefixextras.go (what blocks have besides rows), prefixorder.go (the order of admissions).
type prefixCache struct {
	s      *State
	totals PrefixTotals
	root   textkeys.Root // of all chains of blocks
	lastID uint64        // of blocks

	blocks   map[plan.Key]*textBlock // the blocks that can be found
	leaves   leaves
	clock    int64 // value of the last block that was evicted
	touches  uint64
	evicted  outbox.Outbox[uint64]
	kept     outbox.Outbox[plan.Keep] // blocks of sequences that have ended
	dropped  []uint64                 // the next plan drops their extras
	uncopied []uint64                 // sequences: the next plan drops their copies of states
	outdated []*textBlock             // blocks whose conversation has later extras; these extras are evicted first
	empty    bool                     // evict all blocks when no step is in flight

	disk        bool // all sockets store blocks in files
	fetches     []*fetch
	lastRequest uint64     // number of the newest Disk effect
	answered    []DiskDone // since the last step
	diskAfter   int64      // the disks are not asked before this time
	spreadAfter int64      // generated blocks are not spread before this time
}

// cachedPrefix is the module's state of one request.
type cachedPrefix struct {
	keys       []plan.Key   // of its first full blocks
	blocks     []*textBlock // shared blocks at its beginning: in prefill on every socket, then on the owner
	saves      bool         // it shares the blocks that it completes
	duplicates int          // blocks that it writes in the step in flight although the cache has them
	branch     int          // number of first tokens that the cache had, with extras or without; 0: none beyond the first chunk
	asked      bool         // the disks were asked for its blocks
	copy       stateCopy    // of its recurrent states, in decode
	passed     int          // number of later requests that were admitted first because the cache has their text
}

// restart resets the state of an admission.
func (p *cachedPrefix) restart() {
	p.blocks, p.branch, p.saves, p.duplicates, p.asked, p.copy = nil, 0, false, 0, false, stateCopy{}
}

// textBlock is a block of a text. Every socket has its heads' rows of it.
type textBlock struct {
	id       uint64
	key      plan.Key
	parent   *textBlock
	tokens   int     // number of tokens in the text up to the end of the block
	after    int     // number of cached blocks that follow it directly
	cached   bool    // it can be found
	ready    bool    // the step that writes it has completed
	extras   extras  // memory for them is booked
	written  extras  // those of extras that the sockets have
	outdated bool    // it is in prefixCache.outdated
	step     uint64  // last step whose plan contains it; that plan cannot evict it
	pins     []int32 // by rank: the number of sequences that hold its rows
	uses     int64
	value    int64 // see prefixCache.use
	touched  uint64
	at       int // index in leaves, or none
}

func newPrefixCache(s *State) *prefixCache {
	return &prefixCache{s: s, root: textkeys.NewRoot(s.cfg.Identity), blocks: map[plan.Key]*textBlock{}}
}

// clear forgets all blocks and fetches when their epoch is over.
func (c *prefixCache) clear() {
	*c = prefixCache{s: c.s, totals: c.totals, root: c.root, lastID: c.lastID, blocks: map[plan.Key]*textBlock{}, disk: c.disk, lastRequest: c.lastRequest, diskAfter: c.diskAfter, spreadAfter: c.spreadAfter}
	for _, r := range c.s.waiting {
		r.prefix.asked = false
	}
}

// between does the cache's work between two steps.
func (c *prefixCache) between() {
	if c.empty {
		c.reset()
	}
	c.restoreAll()
}

// fit finds the owner of a request and the blocks that it can begin with. To make room it cancels
// fetches, and finally begins without blocks.
func (c *prefixCache) fit(r *request, read int) (chain []*textBlock, owner int, need []int64) {
	chain = c.find(r, read)
	owner, need = c.fitChain(r, chain)
	for owner == none && c.cancelOne(true) {
		owner, need = c.fitChain(r, chain)
	}
	if owner == none && len(chain) > 0 {
		chain = nil
		owner, need = c.s.fit(r, 0)
	}
	return chain, owner, need
}

// fitChain finds the owner of a request that begins with a chain of blocks, and pins the chain.
func (c *prefixCache) fitChain(r *request, chain []*textBlock) (owner int, need []int64) {
	steps := make([]uint64, len(chain))
	for k, b := range chain {
		c.pinAll(b, 1)
		steps[k], b.step = b.step, c.s.steps+1
	}
	if owner, need = c.s.fit(r, len(chain)); owner != none {
		return owner, need
	}
	for k, b := range chain {
		c.pinAll(b, -1)
		b.step = steps[k]
	}
	return none, nil
}

// admit gives a request the chain of blocks at its beginning.
func (c *prefixCache) admit(r *request, open *plan.Open, chain []*textBlock) {
	r.prefix.blocks, r.prefix.saves = chain, !r.NoCache && r.sweeping.shape.Group == 0
	if n := len(c.matched(r, r.read)); n > len(chain) {
		r.prefix.branch = n * tensor.BlockSlots
	}
	open.Prefix = r.tokens(0, r.cached)
	for _, b := range chain {
		c.use(b)
		open.Shared = append(open.Shared, b.id)
	}
}

// plan adds the blocks and copies to drop and to keep to a plan.
func (c *prefixCache) plan(p *plan.Plan, rows map[uint64]*request) {
	c.planCopies(p, rows)
	p.DropStates, c.uncopied = c.uncopied, nil
	p.Evict, p.Keep = c.evicted.Take(), c.kept.Take()
	p.DropExtras, c.dropped = c.dropped, nil
}

// keyOf returns the key of block number at of a request. The request must have all its tokens.
func (c *prefixCache) keyOf(r *request, at int) plan.Key {
	for len(r.prefix.keys) <= at {
		r.prefix.keys = append(r.prefix.keys, c.root.Block(r.prefix.keys, r.text()))
	}
	return r.prefix.keys[at]
}

func (r *request) text() textkeys.Text {
	return textkeys.Text{Salt: r.Salt, Adapter: r.Adapter.ID.Bytes(), Token: r.token}
}

// indexKey returns the key of the index of a request's prompt in files. Zero: it is not stored.
func (c *prefixCache) indexKey(r *request) plan.Key {
	if c == nil || !c.disk || r.Policy.Index == nil || r.NoCache {
		return plan.Key{}
	}
	full := r.read / tensor.BlockSlots
	if full > 0 {
		c.keyOf(r, full-1)
	}
	return c.root.Index(r.prefix.keys[:full], r.text(), r.read, r.Policy.Spec())
}

// sharable returns the number of blocks of a prefill that may come from the cache.
func (c *prefixCache) sharable(r *request, read int) int {
	if r.NoCache {
		return 0
	}
	if r.Pool > pooling.Last {
		return 0 // the vector needs the states of the first tokens
	}
	n := r.Policy.ReusableTokens(read)
	if r.PromptLogprobs >= 0 && r.scored < len(r.Prompt)-1 {
		n = min(n, r.scored) // the later rows give scores, so they must be computed
	}
	return n / tensor.BlockSlots
}

// find returns the chain of cached blocks that a request can begin with.
func (c *prefixCache) find(r *request, read int) []*textBlock {
	chain, need := c.matched(r, read), c.needs(r)
	n := len(chain)
	for n > 0 && chain[n-1].written&need != need {
		n--
	}
	return chain[:n]
}

// matched returns the chain of cached blocks at the beginning of a request's text.
func (c *prefixCache) matched(r *request, read int) (chain []*textBlock) {
	for n := c.sharable(r, read); len(chain) < n; {
		b := c.blocks[c.keyOf(r, len(chain))]
		if b == nil || !b.ready {
			break
		}
		chain = append(chain, b)
	}
	return chain
}

// follows reports whether the sequence v is about to read the next block that a waiting request
// lacks, or to keep the extras that it needs.
func (c *prefixCache) follows(r, v *request, read int) bool {
	n := c.sharable(r, read)
	if need := c.needs(r); need != 0 {
		end := c.awaitsExtras(v, need)
		if end <= 0 || end > n*tensor.BlockSlots {
			return false
		}
		at := end/tensor.BlockSlots - 1
		next := c.keyOf(v, at)
		b := c.blocks[next]
		return next == c.keyOf(r, at) && (b == nil || b.written&need != need) && len(c.find(r, read)) <= at
	}
	at := v.cached / tensor.BlockSlots // all full blocks that v has read are shared
	if at >= n || len(v.prefix.blocks) < at || v.phase != prefill || v.ended || !v.prefix.saves || v.read/tensor.BlockSlots <= at {
		return false
	}
	next := c.keyOf(v, at)
	b := c.blocks[next]
	return next == c.keyOf(r, at) && (b == nil || !b.ready)
}

// save shares the full blocks that a chunk completes. A block that the cache already has replaces the
// request's own. If a request cannot share a block, it shares no later ones.
func (c *prefixCache) save(run *plan.Run, r *request) {
	run.SaveFrom = len(r.prefix.blocks)
	for at := len(r.prefix.blocks); r.prefix.saves && (at+1)*tensor.BlockSlots <= run.Start+len(run.Tokens); at++ {
		var parent *textBlock
		if at > 0 {
			parent = r.prefix.blocks[at-1]
		}
		if parent != nil && !parent.cached {
			r.prefix.saves = false // evicted meanwhile
			return
		}
		name := c.keyOf(r, at)
		b := c.blocks[name]
		if b != nil {
			r.prefix.duplicates++ // until the step has completed the request also has its own rows
		} else {
			if !c.reserveWindow() || parent != nil && !parent.cached {
				r.prefix.saves = false
				return
			}
			b = c.shareNew(r, name, parent)
		}
		c.use(b)
		b.step = c.s.steps + 1
		c.s.ledger.share(r, b)
		run.Save = append(run.Save, b.id)
	}
	if len(run.Save) > 0 {
		run.Keys = c.diskKeys(r, run.SaveFrom, len(run.Save))
	}
	c.saveExtras(run, r)
}

// diskKeys returns the keys that disks use: of the block before the first, then of each block.
func (c *prefixCache) diskKeys(r *request, from, blocks int) (keys []plan.Key) {
	if !c.disk {
		return nil
	}
	if from == 0 {
		keys = append(keys, plan.Key{})
	}
	for at := max(0, from-1); at < from+blocks; at++ {
		keys = append(keys, c.keyOf(r, at))
	}
	return keys
}

// shareNew moves one of the request's blocks to the cache, as a child of parent.
func (c *prefixCache) shareNew(r *request, name plan.Key, parent *textBlock) *textBlock {
	b := c.newBlock(name, parent)
	c.s.ledger.takeOver(r, 1)
	return b
}

// newBlock adds a block to the cache, as a child of parent. It is not ready until its rows are written.
func (c *prefixCache) newBlock(name plan.Key, parent *textBlock) *textBlock {
	c.lastID++
	b := &textBlock{id: c.lastID, key: name, parent: parent, tokens: tensor.BlockSlots, cached: true, pins: make([]int32, len(c.s.ledger.sockets)), at: none}
	c.blocks[name] = b
	if parent != nil {
		b.tokens += parent.tokens
		parent.after++
		c.settle(parent)
	}
	c.s.ledger.cache(b)
	return b
}

// reserveWindow reserves room on every socket for the rows of one block in layers with a window.
// Prefill would have freed those rows.
func (c *prefixCache) reserveWindow() bool {
	for i := range c.s.ledger.sockets {
		if !c.makeFree(i, c.s.ledger.sockets[i].windowed) {
			return false
		}
	}
	return true
}

// done marks the blocks that a run wrote as ready: its step has completed.
func (c *prefixCache) done(run *plan.Run, r *request) {
	c.s.ledger.takeOver(r, r.prefix.duplicates)
	r.prefix.duplicates = 0
	for i := range run.Save {
		b := r.prefix.blocks[run.SaveFrom+i]
		b.ready = true
		c.settle(b)
	}
	if extrasOf(run) != 0 {
		c.savedExtras(run, r)
	}
}
