package prefix

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/snapshots"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Extras of blocks. Some prompts need more than a cached text's rows to start after it: a policy that
// sums attention over all queries of a prompt needs these sums, and a model with recurrent layers a
// snapshot of their states. Both are stored with some blocks, in memory of the cache. A later prompt
// starts after the last block with the extras that it needs. Files have snapshots but no sums.

// Extras is the set of extras that a block has besides rows.
type Extras uint8

const (
	Sums Extras = 1 << iota
	Snapshot
)

// needs returns the extras that a prompt needs of the block that it starts after.
func (t *Tree) needs(x *Text) (need Extras) {
	if x.Policy.Needs.PromptAttention {
		need |= Sums
	}
	if t.Recurrent() {
		need |= Snapshot
	}
	return need
}

// Recurrent reports whether a prompt can start after a block with a snapshot only.
func (t *Tree) Recurrent() bool { return t.g.Recurrent.Layers > 0 }

// extrasAt returns where the next chunk of a prefill must end so that its extras can be kept; 0:
// anywhere. A prompt that needs both kinds keeps them together, where sums are worth keeping.
func (t *Tree) extrasAt(x *Text, cached, read int) int {
	switch {
	case !x.Saves:
		return 0
	case x.Policy.Needs.PromptAttention:
		return x.Policy.SumsAt(read, cached)
	}
	return snapshots.At(&t.g, x.Policy, read, cached, x.Branch)
}

// regular reports whether texts are likely to diverge after a block, so that its extras stay when later
// ones of the same conversation come.
func (t *Tree) regular(b *Block) bool {
	if b.Extras&Sums != 0 || !t.Recurrent() {
		return b.Tokens&(b.Tokens-1) == 0
	}
	return b.after > 1 || b.Tokens%snapshots.Stride(&t.g) == 0
}

// Cut shortens a chunk that ends at a position, so that it ends where the extras of its prompt can be
// stored.
func (t *Tree) Cut(x *Text, end, cached, read int) int {
	if at := t.extrasAt(x, cached, read); at > 0 {
		return min(end, at)
	}
	return end
}

// awaitsExtras returns where a prefill will keep extras next, if a prompt that needs these can wait for
// them.
func (t *Tree) awaitsExtras(other *Text, need Extras, cached, read int) int {
	if len(other.Blocks) < cached/tensor.BlockSlots || t.needs(other)&need != need {
		return 0
	}
	return t.extrasAt(other, cached, read)
}

// saveExtras stores the extras at the end of a chunk, if the chunk ends at the right place and all
// sockets have room.
func (t *Tree) saveExtras(run *plan.Run, x *Text, read int) {
	end := run.Start + len(run.Tokens)
	if !x.Saves || t.extrasAt(x, run.Start, read) != end || len(x.Blocks)*tensor.BlockSlots != end {
		return
	}
	b := x.Blocks[len(x.Blocks)-1]
	missing := t.needs(x) &^ b.Extras
	if missing == 0 || !b.Cached || !t.bookExtras(b, missing) {
		return
	}
	run.Sums, run.Snapshot = missing&Sums != 0, missing&Snapshot != 0
}

// extrasOf returns the extras that a run saves.
func extrasOf(run *plan.Run) (x Extras) {
	if run.Sums {
		x |= Sums
	}
	if run.Snapshot {
		x |= Snapshot
	}
	return x
}

// bookExtras books memory for extras of a block on every socket. It returns false if it does not fit. It also does while
// the sockets still have extras of the block that the next plan drops: they take blocks of ended sequences before that.
func (t *Tree) bookExtras(b *Block, x Extras) bool {
	if slices.Contains(t.dropped, b.ID) {
		return false
	}
	for i := range t.sockets {
		if bytes := t.ExtrasBytes(b, x, i); !t.MakeFree(i, bytes) {
			return false
		}
	}
	t.moveExtras(b, x, 1)
	b.Extras |= x
	return true
}

// savedExtras marks extras whose step has completed. Earlier ones of the same conversation are then
// outdated, except at regular places.
func (t *Tree) savedExtras(run *plan.Run, x *Text) {
	b := x.Blocks[len(x.Blocks)-1]
	b.Written |= extrasOf(run)
	if b.Written&t.needs(x) != t.needs(x) {
		return // a snapshot is being read from files
	}
	for _, old := range x.Blocks[:len(x.Blocks)-1] {
		if old.Written != 0 && !old.outdated && !t.regular(old) {
			old.outdated = true
			t.outdated = append(t.outdated, old)
		}
	}
}

// evictExtras drops outdated extras to free memory on a socket. It returns false if there are none.
func (t *Tree) evictExtras(rank int) bool {
	t.outdated = slices.DeleteFunc(t.outdated, func(b *Block) bool { return !b.outdated || b.Written == 0 })
	for i, b := range t.outdated {
		if b.step != t.step && t.ExtrasBytes(b, b.Extras, rank) > 0 {
			t.outdated = slices.Delete(t.outdated, i, i+1)
			t.dropExtras(b)
			return true
		}
	}
	return false
}

// dropExtras drops the extras of a block and keeps the block.
func (t *Tree) dropExtras(b *Block) {
	t.moveExtras(b, b.Extras, -1)
	b.Extras, b.Written, b.outdated = 0, 0, false
	t.dropped = append(t.dropped, b.ID)
}

// KeepSnapshot gives a block without a snapshot a copy of the states after it. It returns false if memory is
// short.
func (t *Tree) KeepSnapshot(b *Block) bool {
	if !t.bookExtras(b, Snapshot) {
		return false
	}
	b.Written |= Snapshot
	return true
}

// ExtrasBytes returns the memory of extras of a block on a socket.
func (t *Tree) ExtrasBytes(b *Block, x Extras, rank int) (bytes int64) {
	heads := t.sockets[rank].heads
	if x&Sums != 0 {
		bytes += kvcache.SumsBytes(t.g, heads, b.Tokens)
	}
	if x&Snapshot != 0 {
		bytes += kvcache.StateBytes(t.g, heads)
	}
	return bytes
}

// moveExtras books the memory of extras of a block, or frees it with sign -1.
func (t *Tree) moveExtras(b *Block, x Extras, sign int64) {
	for i, m := range t.sockets {
		bytes := sign * t.ExtrasBytes(b, x, i)
		m.Shared += bytes
		m.Evictable += bytes
	}
}
