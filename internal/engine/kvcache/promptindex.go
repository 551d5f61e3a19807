package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// PromptIndex is the data that a policy builds of a prompt that has been read, besides a choice of rows.
// Package squeezed orders the rows by clusters. Package shadowkv replaces keys by factors of low
// rank. The methods are pure, except for what they do with their arguments.
type PromptIndex interface {
	// Fits returns an error that wraps ErrPolicy if the index is not possible for caches of this
	// shape.
	Fits(g Geometry) error
	// Plan describes the index of a layer of a prompt that has the given number of tokens.
	Plan(g Geometry, prompt int) IndexPlan
	// Prepare does one of the pieces before the hand-over, see IndexWork, for the heads of the
	// prompt that from holds.
	Prepare(o *Observation, from *Store, piece int, run Run)
	// Arrange returns the order in which the owner stores the rows of a head, all of which stay. It
	// is called if Parts.Reorders.
	Arrange(s *Statistics) Kept
	// Open begins the index of a store that has memory for its rows. If moved, WriteIndex brings
	// the index of another owner, and Build has nothing to add to it.
	Open(s *Store, moved bool) (StoreIndex, error)
}

// StoreIndex is the index of one store, in the layers whose rule has a PromptIndex.
type StoreIndex interface {
	// Build does a piece of the owner's work, see IndexWork. There is at least one piece. ropes
	// rotate the keys of each layer.
	Build(piece int, run Run, ropes Ropes) error
	// IndexBytes is the size of the data that moves with the rows of a head (rowblock.Index). ReadIndex
	// fills dst with this data. WriteIndex takes it, from Kept.Index of the hand-over or from another
	// owner.
	IndexBytes(layer, head int) int
	ReadIndex(dst []byte, layer, head int)
	WriteIndex(src []byte, layer, head int) error
	// Bytes is the memory that the index holds, and Release frees it.
	Bytes() int64
	Release()
}

// RowReplacer is a StoreIndex that replaces rows: those of the first IndexPlan.Replaced blocks of a
// head, which Seal frees after Build.
type RowReplacer interface {
	StoreIndex
	// View is Store.View of the chosen pages of a head, ascending. Several heads may be viewed at
	// once. See Store.ViewPages.
	View(layer, head int, pages []int32, n int, rope Rope, s *tensor.AttnScratch) ([][]byte, int, []uint64)
	// ReadValues fills dst with the values of a block, page by page, as files hold them. DropValues
	// frees those of a head, which are in a file from now on.
	ReadValues(dst []byte, layer, head, block int)
	DropValues(layer, head int)
}

// IndexPlan describes the index of a layer.
type IndexPlan struct {
	IndexWork
	Replaced int   // first blocks of each head whose rows the index replaces
	Bytes    int64 // memory of the index, of all heads of the layer
	Read     int   // bytes that a step reads of a head's index beyond the rows that it replaces
}

// Run calls f with each of 0 to n-1, in any order and possibly concurrently.
type Run = func(n int, f func(i int))

// IndexWork describes the work of a PromptIndex as pieces between the steps of other sequences.
// All sockets have the same number of pieces.
//
// The first Before pieces can run once After tokens have been read, see PromptIndex.Prepare. The
// hand-over does the remaining ones when the prompt has been read, with the same result.
//
// The pieces of the hand-over follow, see Store.Index. Each moves the rows of a quarter of a layer's
// heads to the owner (Moved), which indexes them. The pieces after these move nothing.
type IndexWork struct {
	After  int // tokens that must have been read
	Pieces int // 0: nothing to do between steps
	Before int // pieces before the hand-over
	Fine   int // part of Before: pieces of the first kind

	Clusters           [3]int // equal keys and equal parameters give equal clusters
	Work, Coarse, Move int64  // multiplications per head in one piece of each kind, or equivalent time
}

// IndexWorkOf returns the work for the first prompt tokens of a sequence.
func IndexWorkOf(g Geometry, prompt int, p *Policy) IndexWork {
	return p.plan(g, prompt).IndexWork
}

// plan returns the plan of the policy's index; zero without one.
func (p *Policy) plan(g Geometry, prompt int) IndexPlan {
	if p.Index == nil || p.Index.Fits(g) != nil {
		return IndexPlan{}
	}
	return p.Index.Plan(g, prompt)
}

// Fits returns an error that wraps ErrPolicy if a policy is not possible for caches of this shape.
func (g Geometry) Fits(p *Policy) error {
	if g.Unturned && p.cachePositions {
		return fmt.Errorf("%w: positions=cache rotates stored keys, and this model normalises keys after their rotation "+
			"or has an indexer: leave positions=cache out", ErrPolicy)
	}
	if p.Index == nil {
		return nil
	}
	return p.Index.Fits(g)
}

// Quarters is the number of pieces that move a layer.
const Quarters = 4

// Moved returns the heads of a layer, perhaps none, that a piece of the hand-over moves. ok is false
// for pieces that move nothing.
func (g Geometry) Moved(piece int) (layer int, heads tensor.Span, ok bool) {
	i := piece % Quarters
	return piece / Quarters, tensor.Span{Lo: i * g.KVHeads / Quarters, Hi: (i + 1) * g.KVHeads / Quarters}, piece < g.Layers*Quarters
}

// Within returns the number of pieces that fit in most multiplications per head, at least one. They
// are of one kind and follow the first done pieces.
func (x IndexWork) Within(done int, most int64) int {
	work, left := x.Work, x.Fine-done
	if left <= 0 {
		work, left = x.Coarse, x.Before-done
	}
	if left <= 0 {
		work, left = x.Move, x.Pieces-done
	}
	return int(min(max(1, most/max(1, work)), int64(left)))
}

// Prepare does the piece of that number before the hand-over, for the heads of the prompt in from.
func (o *Observation) Prepare(from *Store, p *Policy, piece int, run Run) {
	if o != nil && o.labels != nil {
		p.Index.Prepare(o, from, piece, run)
	}
}

// Index does one piece of the owner's index, by its number in the hand-over (see IndexWork). The rows
// of its layers must have arrived. Seal does all remaining pieces.
func (s *Store) Index(piece int, run Run) error {
	if s.sealed || s.pending == 0 || piece != s.indexed || s.promptIndex == nil {
		return fmt.Errorf("kvcache: piece %d of an index follows %d pieces (store open: %v)", piece, s.indexed, s.pending > 0)
	}
	s.indexed++
	return s.promptIndex.Build(piece, run, nil)
}

// openIndex begins the index of a store whose rows have memory.
func (s *Store) openIndex(moved bool) (err error) {
	if s.policy.Index != nil && s.g.Fits(s.policy) == nil {
		s.promptIndex, err = s.policy.Index.Open(s, moved)
		s.replacer, _ = s.promptIndex.(RowReplacer)
	}
	return err
}

// buildIndex does the pieces of the index that are left, and frees the rows that it replaces.
func (s *Store) buildIndex(run Run, ropes Ropes) error {
	if s.promptIndex == nil {
		return nil
	}
	x := IndexWorkOf(s.g, s.prompt, s.policy)
	for pieces := max(1, x.Pieces-x.Before); s.indexed < pieces; s.indexed++ {
		if err := s.promptIndex.Build(s.indexed, run, ropes); err != nil {
			return err
		}
	}
	for i := range s.tables {
		t := &s.tables[i]
		if t.replaced == t.freed {
			continue
		}
		rows := t.rows()
		if t.rest != nil {
			for j, b := range t.rest {
				copy(b, rows[t.replaced+j])
			}
			s.arena.Release(rows)
			copy(rows[t.replaced:], t.rest)
			t.rest = nil
		} else {
			s.arena.Release(rows[:t.replaced])
		}
		clear(rows[:t.replaced])
		t.freed = t.replaced
	}
	return nil
}

// Arena returns the memory of the store.
func (s *Store) Arena() *memory.Arena { return s.arena }

// IndexBlocks returns the blocks of the selector's index of a head.
func (s *Store) IndexBlocks(layer, head int) [][]byte {
	return s.table(layer, head).planes[indexPlane].blocks
}

// Queries returns the queries of the observation window that came with a head's rows, [window][group]
// [KDim]; nil after Seal, and in a cache that was moved.
func (s *Store) Queries(layer, head int) []float32 { return s.table(layer, head).queries }
