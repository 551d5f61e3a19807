package prefix

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// DiskDone answers a report.Disk with the number of leading blocks that every socket has.
type DiskDone struct {
	Number uint64
	Blocks int
}

const (
	maxFetches  = 8      // of waiting requests, and as many of ended sequences
	lookMillis  = 250    // for a lookup, which reads no file
	fetchMillis = 500    // minimum time for a read
	slowMillis  = 30_000 // pause after a late answer
)

// Fetches brings blocks to the sockets that do not have their rows.
//
// Every socket writes its rows of saved blocks to files while steps run (see
// internal/engine/kvcache/tier). Before prefill of a prompt, Fetches requests from the sockets the
// number of its blocks that they have. Then it reserves memory for them. The request waits while others
// are admitted, but never longer than prefill would take. A late block counts as a miss.
//
// Blocks of generated tokens come from the owner of the ended sequence in the same way.
type Fetches struct {
	List []*Fetch

	tree      *Tree
	maxMillis int64 // maximum time that a request waits

	now       int64  // time of the last Tick, in milliseconds
	perSecond int64  // tokens that prefill reads
	last      uint64 // number of the newest Disk
	answered  []DiskDone
	requests  []report.Disk // since Asked
	diskAfter int64         // no request to the disks before this time
	ownAfter  int64         // generated blocks are not spread before this time
}

// Sequence is an ended sequence.
type Sequence interface {
	// Free frees the memory of the sequence. The fetch of its output has ended.
	Free()
}

// Fetch copies blocks to a socket, for a waiting request or from an ended sequence.
type Fetch struct {
	Sequence Sequence // whose output is fetched; nil: the disks have the blocks
	Chain    []*Block // cached blocks before them, pinned during the fetch
	Coming   []*Block // blocks that are being fetched; empty during a lookup

	text   *Text
	number uint64 // number of the unanswered Disk; 0: it was answered
	until  int64
	seq    uint64 // number of Sequence
	owner  int    // rank of Sequence
	limit  int    // number of the text's blocks that can come from the cache
	from   int    // number of the first block in its text
	keys   []plan.Key
	stored int // number of blocks that all disks have
}

// NewFetches makes the fetches for a tree. A request waits for at most maxMillis.
func NewFetches(tree *Tree, maxMillis int64) *Fetches {
	return &Fetches{tree: tree, maxMillis: maxMillis}
}

// Reset drops all fetches when their epoch is over.
func (f *Fetches) Reset() { f.List, f.answered, f.requests = nil, nil, nil }

// Tick sets the time in milliseconds, and the number of tokens that prefill reads in a second; 0: unknown.
func (f *Fetches) Tick(now, perSecond int64) { f.now, f.perSecond = now, perSecond }

// Asked returns the requests to the sockets since the last call. A socket that has begun a step after this
// one ignores them.
func (f *Fetches) Asked(step uint64) []report.Disk {
	requested := f.requests
	f.requests = nil
	for i := range requested {
		requested[i].Step = step
	}
	return requested
}

// Slow reports whether the disks get no requests at the moment, because an answer was late.
func (f *Fetches) Slow() bool { return f.now < f.diskAfter }

// Full reports whether the disks take no further request.
func (f *Fetches) Full() bool { return f.Count(false) >= maxFetches || f.Slow() }

// Look requests from the disks the blocks of a prompt that the cache does not have. most is the number
// of its blocks that can come from the cache.
func (f *Fetches) Look(x *Text, most int) {
	at := len(f.tree.Match(x, most))
	if at >= most {
		return
	}
	o := &Fetch{text: x, from: at, limit: most}
	for ; at < most; at++ {
		o.keys = append(o.keys, f.tree.Key(x, at))
	}
	f.List = append(f.List, o)
	f.request(o, lookMillis)
}

// Restore requests the blocks that all disks have. It runs between steps.
func (f *Fetches) Restore() {
	for _, o := range slices.Clone(f.List) {
		if o.stored > 0 && len(o.Coming) == 0 {
			f.restore(o)
		}
	}
}

// restore reserves memory for blocks and requests them.
func (f *Fetches) restore(o *Fetch) {
	chain := f.tree.Match(o.text, o.limit)
	last := o.from + o.stored
	if o.text.Ended || len(chain) < o.from || len(chain) >= last {
		f.end(o, 0)
		return
	}
	o.keys, o.from = o.keys[len(chain)-o.from:o.stored], len(chain)
	if !f.book(o, chain) {
		f.end(o, 0)
		return
	}
	f.request(o, f.timeout(len(o.Coming)))
}

// Spread makes all sockets fetch the blocks of an ended sequence, up to a number of tokens of its text.
// They follow its first `prompt` blocks, which the cache must have. A request with the same text waits for
// them. It returns false if nothing is fetched. Otherwise the sequence keeps its memory until Free is
// called.
func (f *Fetches) Spread(x *Text, prompt, tokens int, of Sequence, seq uint64, owner int) bool {
	if n := len(x.Blocks); n < prompt || n > 0 && !x.Blocks[n-1].Cached || f.now < f.ownAfter || f.Count(true) >= maxFetches {
		return false
	}
	to := tokens / tensor.BlockSlots
	chain := f.tree.extend(x, x.Blocks, to) // another sequence may have had the same output
	o := &Fetch{text: x, Sequence: of, seq: seq, owner: owner, from: len(chain)}
	for at := o.from; at < to; at++ {
		o.keys = append(o.keys, f.tree.Key(x, at))
	}
	if len(o.keys) == 0 {
		return false
	}
	if !f.book(o, chain) {
		return f.withdraw(o)
	}
	f.List = append(f.List, o)
	blocks := 0 // the owner sends them one after another
	for _, o := range f.List {
		if o.Sequence != nil {
			blocks += len(o.Coming)
		}
	}
	f.request(o, f.timeout(blocks))
	return true
}

// withdraw ends a fetch of an ended sequence that does not fit. It returns true if that freed the sequence.
func (f *Fetches) withdraw(o *Fetch) bool {
	if len(o.Coming) > 0 {
		f.end(o, 0)
		return true
	}
	f.tree.unpinAll(o.Chain)
	return false
}

// book reserves memory for the blocks after a chain, as many as fit. None of the chain's blocks is
// evicted before the fetch ends, because each has a child. It returns false if the blocks that fit are of
// no use.
func (f *Fetches) book(o *Fetch, chain []*Block) bool {
	t, requested := f.tree, len(o.keys)
	o.Chain = chain
	t.pinAll(chain)
	steps := t.protect(chain)
	var parent *Block
	if n := len(chain); n > 0 {
		parent = chain[n-1]
	}
	for _, key := range o.keys {
		if t.blocks[key] != nil || !t.reserveBlock() {
			break
		}
		parent = t.add(key, parent)
		o.Coming = append(o.Coming, parent)
		t.pinAll(o.Coming[len(o.Coming)-1:])
	}
	restoreSteps(chain, steps)
	o.keys = o.keys[:len(o.Coming)]
	switch n := len(o.Coming); {
	case n == 0:
		return false
	case t.Recurrent(): // the last block has the snapshot
		return n == requested && t.bookExtras(o.Coming[n-1], Snapshot)
	}
	return true
}

func (f *Fetches) request(o *Fetch, millis int64) {
	f.last++
	o.number, o.until = f.last, f.now+millis
	d := report.Disk{Number: o.number, Seq: o.seq, Owner: o.owner, From: o.from, Keys: o.keys, Millis: millis}
	if o.from > 0 {
		d.Before = f.tree.Key(o.text, o.from-1)
	}
	for _, b := range o.Coming {
		d.Blocks = append(d.Blocks, b.ID)
	}
	f.requests = append(f.requests, d)
}

// timeout returns the milliseconds to wait for blocks: at most about the time of a prefill of their
// tokens.
func (f *Fetches) timeout(blocks int) int64 {
	if f.perSecond == 0 {
		return f.maxMillis
	}
	return min(f.maxMillis, max(fetchMillis, int64(blocks*tensor.BlockSlots)*1000/f.perSecond))
}

// Answered records an answer. It has its effect in Poll.
func (f *Fetches) Answered(d DiskDone) { f.answered = append(f.answered, d) }

// Poll processes the answers since the last call, and ends late fetches. It runs between steps, when
// memory can be freed.
func (f *Fetches) Poll() {
	for _, d := range f.answered {
		f.answer(d)
	}
	f.answered = nil
	for _, o := range slices.Clone(f.List) {
		switch late := o.number != 0 && f.now >= o.until; {
		case late && o.Sequence != nil:
			f.end(o, 0)
			f.ownAfter = f.now + slowMillis
		case late:
			f.end(o, 0)
			f.diskAfter = f.now + slowMillis
			f.tree.Totals.Late++
		}
	}
}

// answer processes a DiskDone. A late one has no effect.
func (f *Fetches) answer(d DiskDone) {
	for _, o := range f.List {
		switch {
		case o.number != d.Number || o.number == 0:
		case len(o.Coming) > 0 || d.Blocks <= 0:
			f.end(o, min(d.Blocks, len(o.Coming)))
			return
		default:
			o.number, o.stored = 0, min(d.Blocks, len(o.keys))
		}
	}
}

// end ends a fetch whose first blocks have arrived. Those can be found from now on. The others are
// dropped, unless another prompt has written them or writes them in the next step. A request that has
// not been sent yet is withdrawn: a socket could get it after the step that drops the blocks, and would
// keep them.
func (f *Fetches) end(o *Fetch, came int) {
	t := f.tree
	f.requests = slices.DeleteFunc(f.requests, func(d report.Disk) bool { return d.Number == o.number })
	t.unpinAll(o.Chain)
	t.unpinAll(o.Coming)
	for _, b := range o.Coming[:max(0, came)] {
		b.Ready = true
		t.use(b)
		if o.Sequence != nil {
			t.Totals.Answers += tensor.BlockSlots
		} else {
			t.Totals.Restored += tensor.BlockSlots
		}
	}
	if n := len(o.Coming); n > 0 && came == n {
		o.Coming[n-1].Written |= o.Coming[n-1].Extras & Snapshot
	}
	for _, b := range slices.Backward(o.Coming) {
		if written := b.step == t.step; !b.Ready && b.after == 0 && !written {
			t.drop(b)
		} else if b.Written != b.Extras { // its snapshot has not arrived
			t.dropExtras(b)
		}
		t.settle(b)
	}
	if o.Sequence != nil {
		o.Sequence.Free()
	}
	f.List = slices.DeleteFunc(f.List, func(v *Fetch) bool { return v == o })
}

// Awaits reports whether blocks that a text begins with, among its first `most`, are being fetched.
func (f *Fetches) Awaits(x *Text, most int) bool {
	return slices.ContainsFunc(f.List, func(o *Fetch) bool { return o.text == x }) || f.Incoming(x, most)
}

// Incoming reports whether the next block that a text lacks is being fetched for another one.
func (f *Fetches) Incoming(x *Text, most int) bool {
	if len(f.List) == 0 || x.Policy.Needs.PromptAttention {
		return false
	}
	at := len(f.tree.Match(x, most))
	if at >= most {
		return false
	}
	b := f.tree.blocks[f.tree.Key(x, at)]
	return b != nil && slices.ContainsFunc(f.List, func(o *Fetch) bool { return slices.Contains(o.Coming, b) })
}

// Cancel cancels one fetch to free its memory, the newest first: of an ended sequence, or with output
// false of a waiting request. It returns false if there is none.
func (f *Fetches) Cancel(output bool) bool {
	for _, o := range slices.Backward(f.List) {
		if len(o.Coming) > 0 && (o.Sequence != nil) == output {
			f.end(o, 0)
			return true
		}
	}
	return false
}

// CancelAny cancels one fetch, of an ended sequence if there is one.
func (f *Fetches) CancelAny() bool { return f.Cancel(true) || f.Cancel(false) }

// Count counts the fetches of ended sequences (output), or all others.
func (f *Fetches) Count(output bool) (n int) {
	for _, o := range f.List {
		if (o.Sequence != nil) == output {
			n++
		}
	}
	return n
}
