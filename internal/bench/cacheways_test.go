package bench

import (
	"math/rand/v2"

	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	kvmemory "github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ring is the server's way: a store under a policy.
type ring struct {
	*kvcache.Store
	rope kvcache.Rope
}

func newRing(a *kvmemory.Arena, g kvcache.Geometry, p *kvcache.Policy, r *rotation.Table) (*ring, error) {
	slots := p.Slots(1<<20, 1<<20)
	s, err := filled(a, g, p, slots)
	return &ring{s, r.At}, err
}

func (r *ring) begin(pos int) error { return r.Reserve(pos + 1) }
func (r *ring) end()                { r.Commit(1) }
func (r *ring) bytes() int64        { return r.Bytes() }

func (r *ring) Observe(_, _, _, _ int, _ []float32, _ int) {}

func (r *ring) Masks(int, int, int, int, []float32, int, *tensor.AttnScratch) [][]uint64 { return nil }

func (r *ring) View(layer, head, _ int, _ []float32, s *tensor.AttnScratch) ([][]byte, int, []uint64) {
	return r.ReadBlocks(layer, head, r.rope, s), r.Len(layer, head), nil
}

// turning follows EQUIP literally: in place, but with indices counted from the oldest token, so all
// keys are rotated at every step (figure 16). rotate_half comes from a cache (figure 17) or from
// the key.
type turning struct {
	ring
	g    kvcache.Geometry
	p    kvcache.Ring
	half [][]byte // [layer][head][block]
	all  *rotation.Table
}

func newTurning(a *kvmemory.Arena, g kvcache.Geometry, p *kvcache.Policy, r *rotation.Table, half bool) (*turning, error) {
	s, err := newRing(a, g, p, r)
	if err != nil {
		return nil, err
	}
	t := &turning{ring: *s, g: g, p: p.Eviction.(kvcache.Ring), all: r}
	for layer := range g.Layers {
		for head := range g.KVHeads {
			for _, b := range s.Blocks(layer, head) {
				if !half {
					break
				}
				h := make([]byte, g.Layout.HalfBytes())
				for slot := range tensor.BlockSlots {
					g.Layout.PutHalf(h, b, slot)
				}
				t.half = append(t.half, h)
			}
		}
	}
	return t, nil
}

func (t *turning) bytes() int64 { return t.Bytes() + int64(len(t.half)*t.g.Layout.HalfBytes()) }

func (t *turning) WriteRun(layer, head, pos, _ int, k []float32, ldk int, v []float32, ldv int) {
	t.Store.WriteRun(layer, head, pos, 1, k, ldk, v, ldv)
	if t.half != nil {
		slot := t.p.Slot(nil, pos)
		t.g.Layout.PutHalf(t.halves(layer, head)[slot/tensor.BlockSlots], t.Blocks(layer, head)[slot/tensor.BlockSlots], slot%tensor.BlockSlots)
	}
}

func (t *turning) halves(layer, head int) [][]byte {
	n := len(t.Blocks(layer, head))
	return t.half[(layer*t.g.KVHeads+head)*n:][:n]
}

func (t *turning) View(layer, head, _ int, _ []float32, s *tensor.AttnScratch) ([][]byte, int, []uint64) {
	blocks, n := t.Blocks(layer, head), t.Len(layer, head)
	newest := t.p.Slot(nil, t.Tokens())
	var half [][]byte
	if t.half != nil {
		half = t.halves(layer, head)
	}
	return turnAll(t.g.Layout, blocks, half, n, t.all, s, func(slot int) int {
		if slot < t.p.Sink {
			return slot
		}
		return t.p.Sink + (slot-newest-1+2*t.p.Recent)%t.p.Recent
	}), n, nil
}

// turnAll rotates every key by the index of its slot.
func turnAll(l tensor.KVLayout, blocks, half [][]byte, n int, r *rotation.Table, s *tensor.AttnScratch, index func(slot int) int) [][]byte {
	out, row := s.Blocks(len(blocks), l.BlockBytes()), s.Row(2*l.KDim)
	var offsets [tensor.BlockSlots]int32
	for b := range blocks {
		size := min(tensor.BlockSlots, n-b*tensor.BlockSlots)
		for i := range size {
			offsets[i] = int32(index(b*tensor.BlockSlots + i))
		}
		var h []byte
		if half != nil {
			h = half[b]
		}
		l.RotateKeys(out[b], blocks[b], h, offsets[:size], r.At, row)
	}
	return out
}

// shifted is StreamingLLM as published, on the same pages. The row after the sink is removed, later
// rows move up by one slot, and the new row is appended. With rotations, all keys are rotated when
// they are read.
type shifted struct {
	g      kvcache.Geometry
	slots  int
	blocks [][][]byte // [layer*heads][block]
	all    *rotation.Table
}

func newShifted(g kvcache.Geometry, slots int, r *rotation.Table) *shifted {
	c := &shifted{g: g, slots: slots, all: r}
	rng := rand.New(rand.NewPCG(4, 5))
	k, v := make([]float32, g.Layout.KDim), make([]float32, g.Layout.VDim)
	for range g.Layers * g.KVHeads {
		blocks := make([][]byte, (slots+tensor.BlockSlots-1)/tensor.BlockSlots)
		for i := range blocks {
			blocks[i] = make([]byte, g.Layout.BlockBytes())
		}
		for slot := range slots {
			randomRow(rng, k)
			g.Layout.Put(blocks[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
		}
		c.blocks = append(c.blocks, blocks)
	}
	return c
}

func (c *shifted) State(_, _ int) *states.State               { return nil } // no recurrent layers
func (c *shifted) begin(int) error                            { return nil }
func (c *shifted) end()                                       {}
func (c *shifted) Observe(_, _, _, _ int, _ []float32, _ int) {}
func (c *shifted) bytes() int64 {
	return int64(len(c.blocks)*len(c.blocks[0])) * int64(c.g.Layout.BlockBytes())
}

func (c *shifted) WriteRun(layer, head, _, _ int, k []float32, _ int, v []float32, _ int) {
	blocks, last := c.Blocks(layer, head), c.slots-1
	shiftUp(c.g.Layout, blocks, cacheSink, c.slots)
	c.g.Layout.Put(blocks[last/tensor.BlockSlots], last%tensor.BlockSlots, k, v)
}

func (c *shifted) Prefetch(int, int, int) {}

func (c *shifted) BatchedDecode(int, int, int) (together, causal bool) { return false, false }
func (c *shifted) ParallelWrite(int, int, int, int) bool               { return false }
func (c *shifted) ParallelViews(int) bool                              { return false }
func (c *shifted) Masks(int, int, int, int, []float32, int, *tensor.AttnScratch) [][]uint64 {
	return nil
}

func (c *shifted) Read(layer, head int) int { return len(c.Blocks(layer, head)) }

func (c *shifted) Blocks(layer, head int) [][]byte { return c.blocks[layer*c.g.KVHeads+head] }

func (c *shifted) View(layer, head, _ int, _ []float32, s *tensor.AttnScratch) ([][]byte, int, []uint64) {
	blocks := c.Blocks(layer, head)
	if c.all == nil {
		return blocks, c.slots, nil
	}
	return turnAll(c.g.Layout, blocks, nil, c.slots, c.all, s, func(slot int) int { return slot }), c.slots, nil
}

const panel = 16 // slots per panel, see tensor.KVLayout

// shiftUp moves slots (from, n) to [from, n-1), in whole runs of a panel's rows and of values, as
// fast as pages allow.
func shiftUp(l tensor.KVLayout, blocks [][]byte, from, n int) {
	cells := l.KDim // of 4 bytes: an element of f32, a pair of bf16
	if l.Type == tensor.BF16 {
		cells /= 2
	}
	const cell, line = 4, panel * 4
	keys := func(p int) []byte {
		at := p * panel % tensor.BlockSlots * cells * cell
		return blocks[p*panel/tensor.BlockSlots][at : at+cells*line]
	}
	for p := from / panel; p*panel < n; p++ {
		here, lo := keys(p), max(0, from-p*panel)
		for i := range cells {
			row := here[i*line : (i+1)*line]
			copy(row[lo*cell:], row[(lo+1)*cell:])
		}
		if (p+1)*panel < n {
			next := keys(p + 1)
			for i := range cells {
				copy(here[(i+1)*line-cell:(i+1)*line], next[i*line:])
			}
		}
	}
	width := l.VDim * l.BlockBytes() / tensor.BlockSlots / (l.KDim + l.VDim)
	for b := from / tensor.BlockSlots; b < len(blocks); b++ {
		values, lo := blocks[b][l.HalfBytes():l.BlockBytes()], max(0, from-b*tensor.BlockSlots)
		copy(values[lo*width:], values[(lo+1)*width:])
		if b+1 < len(blocks) {
			copy(values[(tensor.BlockSlots-1)*width:], blocks[b+1][l.HalfBytes():][:width])
		}
	}
}
