package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/outbox"
	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/actors/batcher/textkeys"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// prefixCache is the module that lets prompts share their beginnings. During prefill each socket
// stores its heads' rows of the prompt in blocks of tensor.BlockSlots tokens. Prompts that begin
// with the same tokens share the full blocks. Unused blocks stay in free memory. Package prefix decides
// which blocks are found, kept and evicted. This module passes the texts of requests to it.
//
// Other files: prefixoutput.go (blocks of generated tokens), prefixcopies.go (copies of recurrent states),
// prefixorder.go (the order of admissions).
type prefixCache struct {
	s        *State
	off      bool // Config.NoPrefixCache: the tree stays empty
	tree     *prefix.Tree
	fetches  *prefix.Fetches
	disk     bool                     // all sockets store blocks in files
	kept     outbox.Outbox[plan.Keep] // blocks of sequences that have ended
	uncopied []uint64                 // sequences: the next plan drops their copies of states
	empty    bool                     // evict all blocks when no step is in flight
}

// cachedPrefix is the module's state of one request.
type cachedPrefix struct {
	prefix.Text
	requested bool      // its blocks were requested from the disks
	copy      stateCopy // of its recurrent states, in decode
	passed    int       // number of later requests that were admitted first because the cache has their text
}

// restart resets the state of an admission.
func (p *cachedPrefix) restart() {
	p.Text.Restart()
	p.requested, p.copy = false, stateCopy{}
}

func newPrefixCache(s *State) prefixCache {
	tree := prefix.New(s.cfg.Identity, &s.ledger)
	return prefixCache{s: s, off: s.cfg.NoPrefixCache, tree: tree, fetches: prefix.NewFetches(tree, s.cfg.DiskMillis)}
}

// submit names the text of a request.
func (c *prefixCache) submit(r *request) {
	r.prefix.Policy = r.Policy
	r.prefix.Text.Text = textkeys.Text{Salt: r.Salt, Adapter: r.Adapter.ID.Bytes(), Token: r.token}
}

// serves reports whether a request uses the cache.
func (c *prefixCache) serves(r *request) bool { return !c.off && !r.NoCache }

// place begins an epoch.
func (c *prefixCache) place(disk bool) {
	c.disk = disk && !c.off
	sockets := make([]*prefix.Memory, len(c.s.ledger.sockets))
	for i := range sockets {
		sockets[i] = &c.s.ledger.sockets[i].Memory
	}
	c.tree.Reset(c.s.cfg.Geometry, sockets, c.disk)
}

// clear drops all blocks and fetches when their epoch is over.
func (c *prefixCache) clear() {
	c.tree.Reset(c.s.cfg.Geometry, nil, c.disk)
	c.fetches.Reset()
	c.kept, c.uncopied, c.empty = outbox.Outbox[plan.Keep]{}, nil, false
	for _, r := range c.s.waiting {
		r.prefix.requested = false
	}
}

// between does the cache's work between two steps.
func (c *prefixCache) between() {
	if c.empty {
		c.empty = false
		for c.fetches.CancelAny() {
		}
		c.tree.Empty()
	}
	c.fetches.Restore()
}

// lookAll requests from the disks the blocks of the prompts that will be admitted next.
func (c *prefixCache) lookAll() {
	if !c.disk {
		return
	}
	for _, r := range c.s.waiting {
		if c.fetches.Full() || c.s.full() {
			return
		}
		busy := r.unfit != "" || r.unread || r.remote.Pending() || r.saved.Pending() || r.prefix.requested
		if busy || r.Policy.Needs.PromptAttention || c.s.awaits(r) != 0 || c.fetches.Incoming(&r.prefix.Text, c.sharable(r)) {
			continue
		}
		if c.s.ledger.choose(r, 0).Why != "" {
			return
		}
		r.prefix.requested = true
		c.fetches.Look(&r.prefix.Text, c.sharable(r))
	}
}

// fit finds the owner of a request and the blocks that it can begin with. If memory is short, fit
// cancels fetches. If that is not enough, the request begins without blocks.
func (c *prefixCache) fit(r *request) (chain []*prefix.Block, owner int, need []int64) {
	chain = c.find(r)
	owner, need = c.fitChain(r, chain)
	for owner == none && c.fetches.Cancel(true) {
		owner, need = c.fitChain(r, chain)
	}
	if owner == none && len(chain) > 0 {
		chain = nil
		owner, need = c.s.fit(r, 0)
	}
	return chain, owner, need
}

// fitChain finds the owner of a request that begins with a chain of blocks, and pins the chain.
func (c *prefixCache) fitChain(r *request, chain []*prefix.Block) (owner int, need []int64) {
	undo := c.tree.Hold(chain)
	if owner, need = c.s.fit(r, len(chain)); owner == none {
		undo()
	}
	return owner, need
}

// admit gives a request the chain of blocks at its beginning.
func (c *prefixCache) admit(r *request, open *plan.Open, chain []*prefix.Block) {
	r.prefix.Saves = c.serves(r) && r.sweeping.shape.Group == 0
	open.Prefix = r.tokens(0, r.cached)
	open.Shared = c.tree.Start(&r.prefix.Text, chain, c.sharable(r))
	if c.serves(r) {
		open.IndexKey = c.tree.IndexKey(&r.prefix.Text, r.read)
	}
}

// begun counts a first admission.
func (c *prefixCache) begun(r *request) {
	if c.serves(r) {
		c.tree.Totals.Queries += uint64(len(r.Prompt))
		c.tree.Totals.Hits += uint64(r.warm)
	}
}

// plan adds the blocks and copies to drop and to keep to a plan.
func (c *prefixCache) plan(p *plan.Plan, rows map[uint64]*request) {
	c.planCopies(p, rows)
	p.DropStates, c.uncopied = c.uncopied, nil
	p.Evict, p.Keep = c.tree.Evicted.Take(), c.kept.Take()
	p.DropExtras = c.tree.Dropped()
}

// cut shortens a chunk so that it ends where the extras of its prompt can be stored.
func (c *prefixCache) cut(r *request, end int) int {
	return c.tree.Cut(&r.prefix.Text, end, r.cached, r.read)
}

// save shares the full blocks that a chunk completes.
func (c *prefixCache) save(run *plan.Run, r *request) {
	c.tree.Save(run, &r.prefix.Text, r.read, func() { c.s.ledger.takeOver(r, 1) })
}

// done marks the blocks that a run wrote as ready: its step has completed.
func (c *prefixCache) done(run *plan.Run, r *request) {
	c.s.ledger.takeOver(r, c.tree.Saved(run, &r.prefix.Text))
}

// sharable returns the number of blocks of a prefill that may come from the cache.
func (c *prefixCache) sharable(r *request) int {
	if !c.serves(r) || r.Pool > pooling.Last { // the vector needs the states of the first tokens
		return 0
	}
	n := r.Policy.ReusableTokens(r.toRead())
	if r.PromptLogprobs >= 0 && r.scored < len(r.Prompt)-1 {
		n = min(n, r.scored) // the later rows give scores, so they must be computed
	}
	return n / tensor.BlockSlots
}

// find returns the chain of cached blocks that a request can begin with.
func (c *prefixCache) find(r *request) []*prefix.Block {
	return c.tree.Find(&r.prefix.Text, c.sharable(r))
}

// follows reports whether the sequence v is about to read the next block that a waiting request
// lacks, or to keep the extras that it needs.
func (c *prefixCache) follows(r, v *request) bool {
	return v.phase == prefill && !v.ended && c.tree.Follows(&r.prefix.Text, c.sharable(r), &v.prefix.Text, v.cached, v.read)
}

// awaitsBlocks reports whether blocks that a request begins with are being fetched.
func (c *prefixCache) awaitsBlocks(r *request) bool {
	return c.fetches.Awaits(&r.prefix.Text, c.sharable(r))
}

// limit cancels fetches of ended sequences while a socket would have too many sequences.
func (c *prefixCache) limit() {
	for len(c.s.running)+c.fetches.Count(true) >= c.s.cfg.TokenBudget-1 && c.fetches.Cancel(true) {
	}
}

// blocksOn returns the number of shared blocks that a request holds on a socket.
func (r *request) blocksOn(rank int) int {
	if r.phase == prefill || r.owner == rank {
		return len(r.prefix.Blocks)
	}
	return 0
}

// sharedBytes returns the bytes of shared blocks that a request holds on its owner, beyond r.booked.
func (l *ledger) sharedBytes(r *request) int64 {
	return int64(len(r.prefix.Blocks)) * l.sockets[r.owner].Block
}

// takeOver frees the bytes of the request's own blocks that the cache has taken over.
func (l *ledger) takeOver(r *request, blocks int) {
	for i := range l.sockets {
		bytes := int64(blocks) * l.sockets[i].Block
		r.booked[i] -= bytes
		l.sockets[i].reserved -= bytes
	}
}

// handBlocksOver books the end of prefill: the shared blocks are released on all sockets except the
// owner, and on the owner too unless its cache includes them.
func (l *ledger) handBlocksOver(r *request) {
	shares := r.Policy.Shares(l.g, r.read)
	for i := range l.sockets {
		if a := &l.sockets[i]; i != r.owner || !shares {
			a.Unpin(r.prefix.Blocks)
			a.freed += int64(len(r.prefix.Blocks)) * a.Block
		}
	}
	if !shares {
		r.prefix.Blocks = nil
	}
}

// releaseBlocks books that a request has released its shared blocks.
func (l *ledger) releaseBlocks(r *request) {
	for i := range l.sockets {
		if r.blocksOn(i) > 0 {
			l.sockets[i].Unpin(r.prefix.Blocks)
		}
	}
	r.prefix.Blocks = nil
}
