package prefix

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/actors/batcher/textkeys"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var geometry = kvcache.Geometry{Layers: 1, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}

// budget is a Ledger. own is the memory of sequences, by rank.
type budget struct {
	bytes   int64
	own     []int64
	sockets []*Memory
}

func (b *budget) Free(rank int) int64 { return b.bytes - b.own[rank] - b.sockets[rank].Shared }

// newTree makes the tree of a cluster with two sockets that have memory for this number of blocks.
func newTree(blocks int64) (*Tree, *budget) {
	b := &budget{own: make([]int64, 2)}
	for rank := range b.own {
		m := NewMemory(geometry, rank, 1)
		b.sockets = append(b.sockets, &m)
	}
	b.bytes = blocks * b.sockets[0].Block
	t := New("model", b)
	t.Reset(geometry, b.sockets, false)
	return t, b
}

// textOf is a text of blocks with the given first tokens.
func textOf(blocks []int32) *Text {
	token := func(pos int) int32 { return blocks[min(pos/tensor.BlockSlots, len(blocks)-1)] }
	return &Text{Text: textkeys.Text{Token: token}, Policy: kvcache.Full(), Saves: true}
}

// sequence is a prompt with blocks of its own, beyond those of the cache.
type sequence struct {
	*Text
	blocks []int32
	own    int
	run    *plan.Run // of the step in flight
}

// hold changes the number of blocks of its own.
func (b *budget) hold(q *sequence, by int) {
	q.own += by
	for rank, m := range b.sockets {
		b.own[rank] += int64(by) * m.Block
	}
}

// TestTreeIsASetOfTexts compares the tree with a set of texts, and its choice of a victim with a search of
// all blocks, while sequences start, save blocks, end, and evict blocks of others.
func TestTreeIsASetOfTexts(t *testing.T) {
	started, saved, duplicated, evicted := 0, 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		tree, ledger := newTree(int64(rapid.IntRange(3, 30).Draw(r, "budget")))
		cached := map[string]bool{}  // the beginnings of texts that can be found
		texts := map[uint64]string{} // of blocks, by ID
		forget := func() {
			for _, id := range tree.Evicted.Take() {
				delete(cached, texts[id])
				evicted++
			}
		}
		var running []*sequence
		start := func() {
			blocks := rapid.SliceOfN(rapid.Int32Range(0, 2), 1, 5).Draw(r, "text")
			q := &sequence{Text: textOf(blocks), blocks: blocks}
			want := 0
			for want < len(blocks) && cached[fmt.Sprint(blocks[:want+1])] {
				want++
			}
			chain := tree.Match(q.Text, len(blocks))
			if len(chain) != want {
				r.Fatalf("%d blocks of %v are found, %d are cached", len(chain), blocks, want)
			}
			undo := tree.Hold(chain)
			for rank, m := range ledger.sockets {
				if !tree.MakeFree(rank, int64(len(blocks)-want)*m.Block) {
					undo()
					return
				}
			}
			tree.Start(q.Text, chain, len(blocks))
			ledger.hold(q, len(blocks)-want)
			running = append(running, q)
			started += want
		}
		save := func(q *sequence) { // a step begins
			q.run = &plan.Run{Start: len(q.Blocks) * tensor.BlockSlots, Tokens: make([]int32, q.own*tensor.BlockSlots)}
			tree.Save(q.run, q.Text, len(q.blocks)*tensor.BlockSlots, func() { ledger.hold(q, -1) })
			for i, id := range q.run.Save {
				texts[id] = fmt.Sprint(q.blocks[:q.run.SaveFrom+i+1])
			}
		}
		written := func(q *sequence) { // the step has ended
			n := tree.Saved(q.run, q.Text)
			ledger.hold(q, -n)
			duplicated += n
			for _, id := range q.run.Save {
				cached[texts[id]] = true
				saved++
			}
			if q.run = nil; q.Saves && (q.own != 0 || len(q.Blocks) != len(q.blocks)) {
				r.Fatalf("%v has saved %d blocks and keeps %d of its own", q.blocks, len(q.Blocks), q.own)
			}
		}
		end := func(i int) {
			if running[i].run != nil {
				written(running[i])
			}
			for _, m := range ledger.sockets {
				m.Unpin(running[i].Blocks)
			}
			ledger.hold(running[i], -running[i].own)
			running = slices.Delete(running, i, i+1)
		}
		for step := range uint64(rapid.IntRange(1, 60).Draw(r, "steps")) {
			tree.Begin(step + 1)
			action := rapid.IntRange(0, 3).Draw(r, "start, save, end or evict")
			switch n := len(running); {
			case action == 1 && n > 0:
				switch q := running[rapid.IntRange(0, n-1).Draw(r, "saves")]; {
				case q.run != nil:
					written(q)
				case q.Saves && q.own > 0:
					save(q)
				}
			case action == 2 && n > 0:
				end(rapid.IntRange(0, n-1).Draw(r, "ends"))
			case action == 3:
				rank := rapid.IntRange(0, 1).Draw(r, "rank")
				victim := leastValuable(tree, rank)
				if ok := tree.evict(rank, false); ok != (victim != nil) || ok && victim.Cached {
					r.Fatalf("evicts a block: %v; the least valuable one is %+v", ok, victim)
				}
			default:
				start()
			}
			forget()
			ready := 0
			for _, b := range tree.blocks {
				if b.Ready {
					ready++
				}
			}
			if len(cached) != ready {
				r.Fatalf("%d beginnings are cached, the tree has %d blocks that are ready", len(cached), ready)
			}
			checkMemory(r, tree, ledger, running)
		}
	})
	if started == 0 || saved == 0 || duplicated == 0 || evicted == 0 {
		t.Errorf("%d blocks were found, %d saved, %d duplicates, %d evicted: the test needs all", started, saved, duplicated, evicted)
	}
}

// leastValuable searches for the block that makes room on a socket.
func leastValuable(t *Tree, rank int) (victim *Block) {
	for _, b := range t.blocks {
		followed := false
		for _, other := range t.blocks {
			followed = followed || other.Parent == b
		}
		if followed || !b.Ready || b.Pins[rank] > 0 {
			continue
		}
		if victim == nil || b.value < victim.value || b.value == victim.value && b.touched < victim.touched {
			victim = b
		}
	}
	return victim
}

// checkMemory counts the blocks of the tree and of sequences again.
func checkMemory(r *rapid.T, t *Tree, ledger *budget, running []*sequence) {
	pins := map[*Block]int32{}
	for _, q := range running {
		for _, b := range q.Blocks {
			pins[b]++
		}
	}
	for rank, m := range ledger.sockets {
		shared, evictable := int64(0), int64(0)
		for b, n := range pins {
			if b.Pins[rank] != n {
				r.Fatalf("block %d has %d holders on rank %d, counted %d", b.ID, n, rank, b.Pins[rank])
			}
			shared += m.Block
		}
		for _, b := range t.blocks {
			if pins[b] == 0 {
				shared, evictable = shared+m.Block, evictable+m.Block
			}
		}
		if ledger.Free(rank) < 0 {
			r.Fatalf("rank %d: %d bytes are free", rank, ledger.Free(rank))
		}
		if m.Shared != shared || m.Evictable != evictable {
			r.Fatalf("rank %d: %d bytes shared, %d evictable; counted %d and %d", rank, m.Shared, m.Evictable, shared, evictable)
		}
	}
}

// TestNoExtrasBeforeTheirDrop: a socket keeps the snapshot of an ended sequence before it drops extras, and refuses one for
// a block that has one. So a block whose snapshot was dropped gets another only after the plan with the drop.
func TestNoExtrasBeforeTheirDrop(t *testing.T) {
	tree, ledger := newTree(4)
	g := geometry
	g.Recurrent = states.Shape{Layers: 1, KeyHeads: 2, ValueHeads: 2, KeyDim: 4, ValueDim: 4, Taps: 2}
	ledger.bytes += 2 * kvcache.StateBytes(g, g.KVHeads)
	tree.Reset(g, ledger.sockets, false)
	tree.Begin(1)
	_, b := tree.Keep(textOf([]int32{1}), 1, tensor.BlockSlots, func() {})
	if b == nil || !tree.KeepSnapshot(b) {
		t.Fatal("no memory for a snapshot")
	}
	b.outdated, tree.outdated = true, []*Block{b}
	tree.Begin(2)
	if !tree.evictExtras(0) {
		t.Fatal("the outdated snapshot stays")
	}
	if tree.KeepSnapshot(b) {
		t.Error("a block gets a snapshot while the sockets have its old one")
	}
	if dropped := tree.Dropped(); !slices.Equal(dropped, []uint64{b.ID}) {
		t.Fatalf("the plan drops the extras of blocks %v", dropped)
	}
	if !tree.KeepSnapshot(b) {
		t.Error("a block without a snapshot gets none")
	}
}
