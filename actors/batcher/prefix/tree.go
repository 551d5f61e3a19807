// Package prefix is the cache of the beginnings of texts. Its blocks form a tree: a path from the root is
// the beginning of a text. Every socket has its heads' rows of each block, so one tree serves all sockets
// (docs/decisions/prefix-cache.md).
//
// The package decides which blocks are found, kept, fetched and evicted. It has no requests: the batcher
// passes texts and numbers of tokens, and sends the package's decisions to the sockets.
package prefix

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/outbox"
	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/actors/batcher/textkeys"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// none is the index of a block that is not in Tree.leaves.
const none = -1

// Ledger is the memory of the sockets.
type Ledger interface {
	// Free returns the bytes of a socket that neither sequences nor blocks use.
	Free(rank int) int64
}

// Tree has the blocks of an epoch. A block is a number of tokens: tensor.BlockSlots.
type Tree struct {
	Totals report.PrefixTotals
	// Evicted lists the blocks that the sockets must drop.
	Evicted outbox.Outbox[uint64]

	g       kvcache.Geometry
	root    textkeys.Root // of all chains of blocks
	ledger  Ledger
	sockets []*Memory
	files   bool   // all sockets store blocks in files
	lastID  uint64 // of blocks
	step    uint64 // the next step; blocks that it uses are not evicted

	blocks   map[plan.Key]*Block // the blocks that can be found
	leaves   leaves
	clock    int64 // value of the last block that was evicted
	touches  uint64
	dropped  []uint64 // the next plan drops their extras
	outdated []*Block // blocks whose conversation has later extras; these extras are evicted first
}

// Block is a block of a text.
type Block struct {
	ID      uint64
	Ready   bool    // the step that writes it has completed
	Extras  Extras  // memory for them is booked
	Written Extras  // those of Extras that the sockets have
	Cached  bool    // it can be found
	Tokens  int     // number of tokens in the text up to the end of the block
	Pins    []int32 // by rank: the number of sequences and fetches that hold its rows
	Parent  *Block  // nil: it is the first of its text

	key      plan.Key
	after    int    // number of cached blocks that follow it directly
	outdated bool   // it is in Tree.outdated
	step     uint64 // last step whose plan contains it; that plan cannot evict it
	uses     int64
	value    int64 // value of its uses (Tree.use)
	touched  uint64
	at       int // index in leaves, or none
}

// Text is the text of one request.
type Text struct {
	textkeys.Text
	Policy *kvcache.Policy
	Blocks []*Block // shared blocks at its beginning: in prefill on every socket, then on the owner
	Saves  bool     // its prefill shares the blocks that it completes
	Ended  bool     // its request has ended
	// Branch is the number of first tokens that the cache had, with extras or without; 0: none beyond
	// the first chunk.
	Branch int

	keys       []plan.Key // of its first full blocks
	duplicates int        // blocks that the step in flight writes although the cache has them
}

// Restart resets the state of an admission.
func (x *Text) Restart() { x.Blocks, x.Branch, x.Saves, x.duplicates = nil, 0, false, 0 }

// New makes the empty tree of a model with an identity (see textkeys.NewRoot).
func New(identity string, ledger Ledger) *Tree {
	return &Tree{ledger: ledger, root: textkeys.NewRoot(identity), blocks: map[plan.Key]*Block{}}
}

// Reset begins an epoch, whose sockets have no blocks. files means that all of them store blocks in files.
func (t *Tree) Reset(g kvcache.Geometry, sockets []*Memory, files bool) {
	*t = Tree{ledger: t.ledger, root: t.root, blocks: map[plan.Key]*Block{}, Totals: t.Totals, lastID: t.lastID,
		g: g, sockets: sockets, files: files}
}

// Begin begins the plan of a step.
func (t *Tree) Begin(step uint64) { t.step = step }

// Len returns the number of blocks that can be found.
func (t *Tree) Len() int { return len(t.blocks) }

// Blocks returns the blocks that can be found.
func (t *Tree) Blocks() map[plan.Key]*Block { return t.blocks }

// Dropped returns the blocks whose extras the next plan drops, and empties the list.
func (t *Tree) Dropped() []uint64 {
	dropped := t.dropped
	t.dropped = nil
	return dropped
}

// Key returns the key of the block with number at. The text must have all tokens of the block.
func (t *Tree) Key(x *Text, at int) plan.Key {
	for len(x.keys) <= at {
		x.keys = append(x.keys, t.root.Block(x.keys, x.Text))
	}
	return x.keys[at]
}

// IndexKey returns the key of the index of a prompt of this length in files. Zero: it is not stored.
func (t *Tree) IndexKey(x *Text, read int) plan.Key {
	if !t.files || x.Policy.Index == nil {
		return plan.Key{}
	}
	full := read / tensor.BlockSlots
	if full > 0 {
		t.Key(x, full-1)
	}
	return t.root.Index(x.keys[:full], x.Text, read, x.Policy.Spec())
}

// Match returns the chain of cached blocks at the beginning of a text, at most n.
func (t *Tree) Match(x *Text, n int) []*Block { return t.extend(x, nil, n) }

// extend adds the next blocks of a text that the cache has to a chain, up to n blocks in all.
func (t *Tree) extend(x *Text, chain []*Block, n int) []*Block {
	chain = slices.Clone(chain)
	for len(chain) < n {
		b := t.blocks[t.Key(x, len(chain))]
		if b == nil || !b.Ready {
			break
		}
		chain = append(chain, b)
	}
	return chain
}

// Find returns the chain of cached blocks that a prefill can start after, at most n.
func (t *Tree) Find(x *Text, n int) []*Block {
	chain, need := t.Match(x, n), t.needs(x)
	at := len(chain)
	for at > 0 && chain[at-1].Written&need != need {
		at--
	}
	return chain[:at]
}

// Follows reports whether the prefill of another text is about to read the next block that a text lacks,
// among its first n, or to keep the extras that it needs. The other prefill has read `cached` of `read`
// tokens.
func (t *Tree) Follows(x *Text, n int, other *Text, cached, read int) bool {
	if need := t.needs(x); need != 0 {
		end := t.awaitsExtras(other, need, cached, read)
		if end <= 0 || end > n*tensor.BlockSlots {
			return false
		}
		at := end/tensor.BlockSlots - 1
		next := t.Key(other, at)
		b := t.blocks[next]
		return next == t.Key(x, at) && (b == nil || b.Written&need != need) && len(t.Find(x, n)) <= at
	}
	at := cached / tensor.BlockSlots // all full blocks that it has read are shared
	if at >= n || len(other.Blocks) < at || !other.Saves || read/tensor.BlockSlots <= at {
		return false
	}
	next := t.Key(other, at)
	b := t.blocks[next]
	return next == t.Key(x, at) && (b == nil || !b.Ready)
}

// Hold pins a chain of blocks on every socket, and keeps it from eviction in this step. undo reverts that.
func (t *Tree) Hold(chain []*Block) (undo func()) {
	t.pinAll(chain)
	steps := t.protect(chain)
	return func() {
		t.unpinAll(chain)
		restoreSteps(chain, steps)
	}
}

// protect keeps blocks from eviction in this step. It returns the state that restoreSteps restores.
func (t *Tree) protect(chain []*Block) []uint64 {
	steps := make([]uint64, len(chain))
	for i, b := range chain {
		steps[i], b.step = b.step, t.step
	}
	return steps
}

func restoreSteps(chain []*Block, steps []uint64) {
	for i, b := range chain {
		b.step = steps[i]
	}
}

// Start begins the prefill of a text after a chain that it holds, and returns the IDs of the blocks. The
// prefill reads n blocks that could come from the cache.
func (t *Tree) Start(x *Text, chain []*Block, n int) (ids []uint64) {
	x.Blocks = chain
	if n := len(t.Match(x, n)); n > len(chain) {
		x.Branch = n * tensor.BlockSlots
	}
	for _, b := range chain {
		t.use(b)
		ids = append(ids, b.ID)
	}
	return ids
}

// Save shares the full blocks that a run of a prompt completes. A block that the cache already has
// replaces the sequence's own. If a prompt cannot share a block, it shares no later ones. takeOver frees
// the bytes of one block of the sequence, because the cache counts them from then on.
func (t *Tree) Save(run *plan.Run, x *Text, read int, takeOver func()) {
	run.SaveFrom = len(x.Blocks)
	for at := len(x.Blocks); x.Saves && (at+1)*tensor.BlockSlots <= run.Start+len(run.Tokens); at++ {
		var parent *Block
		if at > 0 {
			parent = x.Blocks[at-1]
		}
		if parent != nil && !parent.Cached {
			x.Saves = false // evicted meanwhile
			return
		}
		key := t.Key(x, at)
		b := t.blocks[key]
		if b != nil {
			x.duplicates++ // until the step has completed the request also has its own rows
		} else {
			if !t.reserveWindow() || parent != nil && !parent.Cached {
				x.Saves = false
				return
			}
			b = t.add(key, parent)
			takeOver()
		}
		t.use(b)
		b.step = t.step
		t.pinAll([]*Block{b})
		x.Blocks = append(x.Blocks, b)
		run.Save = append(run.Save, b.ID)
	}
	if len(run.Save) > 0 {
		run.Keys = t.diskKeys(x, run.SaveFrom, len(run.Save))
	}
	t.saveExtras(run, x, read)
}

// Saved marks the blocks that a run wrote as ready: its step has completed. It returns the number of
// blocks of the sequence's own that the cache had already: their bytes are free now.
func (t *Tree) Saved(run *plan.Run, x *Text) (duplicates int) {
	duplicates, x.duplicates = x.duplicates, 0
	for i := range run.Save {
		b := x.Blocks[run.SaveFrom+i]
		b.Ready = true
		t.settle(b)
	}
	if extrasOf(run) != 0 {
		t.savedExtras(run, x)
	}
	return duplicates
}

// Keep moves the blocks of an ended sequence, up to a number of tokens, to the cache of its only socket.
// last is the last of the text's blocks that the cache has; nil: none. takeOver is that of Save.
func (t *Tree) Keep(x *Text, seq uint64, tokens int, takeOver func()) (k plan.Keep, last *Block) {
	k = plan.Keep{Seq: seq, From: len(x.Blocks)}
	if k.From > 0 {
		last = x.Blocks[k.From-1]
	}
	for at := k.From; (at+1)*tensor.BlockSlots <= tokens && (last == nil || last.Cached); at++ {
		key, id := t.Key(x, at), uint64(0)
		b := t.blocks[key]
		if b == nil {
			b = t.add(key, last)
			takeOver()
			id, b.Ready = b.ID, true
			t.settle(b)
			t.Totals.Answers += tensor.BlockSlots
		}
		t.use(b)
		k.Blocks, last = append(k.Blocks, id), b
	}
	k.Keys = t.diskKeys(x, k.From, len(k.Blocks))
	if last != nil && !last.Cached {
		last = nil
	}
	return k, last
}

// diskKeys returns the keys that disks use: of the block before the first, then of each block.
func (t *Tree) diskKeys(x *Text, from, blocks int) (keys []plan.Key) {
	if !t.files {
		return nil
	}
	if from == 0 {
		keys = append(keys, plan.Key{})
	}
	for at := max(0, from-1); at < from+blocks; at++ {
		keys = append(keys, t.Key(x, at))
	}
	return keys
}

// add adds a block to the cache, as a child of parent. It is not ready until its rows are written.
func (t *Tree) add(key plan.Key, parent *Block) *Block {
	t.lastID++
	b := &Block{ID: t.lastID, key: key, Parent: parent, Tokens: tensor.BlockSlots, Cached: true, Pins: make([]int32, len(t.sockets)), at: none}
	t.blocks[key] = b
	if parent != nil {
		b.Tokens += parent.Tokens
		parent.after++
		t.settle(parent)
	}
	for _, m := range t.sockets {
		m.Shared += m.Block + m.Window
		m.Evictable += m.Block + m.Window
	}
	return b
}

// reserve evicts blocks until this number of bytes is free on every socket.
func (t *Tree) reserve(bytes func(m *Memory) int64) bool {
	for i, m := range t.sockets {
		if !t.MakeFree(i, bytes(m)) {
			return false
		}
	}
	return true
}

// reserveWindow reserves room on every socket for the rows of one block in layers with a window.
// Prefill would have freed those rows.
func (t *Tree) reserveWindow() bool { return t.reserve(func(m *Memory) int64 { return m.Window }) }

// reserveBlock reserves room for a block on every socket.
func (t *Tree) reserveBlock() bool {
	return t.reserve(func(m *Memory) int64 { return m.Block + m.Window })
}

func (t *Tree) pinAll(blocks []*Block) {
	for _, m := range t.sockets {
		m.pin(blocks)
	}
}

func (t *Tree) unpinAll(blocks []*Block) {
	for _, m := range t.sockets {
		m.Unpin(blocks)
	}
}
