package kvcache

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The naive caches that EQUIP's in-place forms must equal (figures 12 and 13).

// naiveRow is a token whose key was never rotated.
type naiveRow struct {
	pos  int
	k, v []float32
}

// naiveCache is one head: rows in text order, without holes.
type naiveCache struct{ rows []naiveRow }

// shiftAndAppend is StreamingLLM as published: rows after the evicted one move up, and the new row
// is appended.
func (c *naiveCache) shiftAndAppend(evict int, r naiveRow) {
	copy(c.rows[evict:], c.rows[evict+1:])
	c.rows[len(c.rows)-1] = r
}

// gatherAndAppend is H2O as published: the rows kept by a mask are gathered into a new cache.
func (c *naiveCache) gatherAndAppend(keep func(pos int) bool, r naiveRow) {
	var rows []naiveRow
	for _, old := range c.rows {
		if keep(old.pos) {
			rows = append(rows, old)
		}
	}
	c.rows = append(rows, r)
}

// attend computes the attention of an unrotated query over a copy of the whole cache, with keys
// rotated at their rank in the cache (relative) or in the text.
func (c *naiveCache) attend(l tensor.KVLayout, q []float32, g int, scale float32, relative bool) []float32 {
	n := len(c.rows)
	blocks := make([][]byte, (n+tensor.BlockSlots-1)/tensor.BlockSlots)
	at := 0
	for i, r := range c.rows {
		if at = r.pos; relative {
			at = i
		}
		if i%tensor.BlockSlots == 0 {
			blocks[i/tensor.BlockSlots] = make([]byte, l.BlockBytes())
		}
		l.Put(blocks[i/tensor.BlockSlots], i%tensor.BlockSlots, rotated(r.k, at), r.v)
	}
	turned := []float32{}
	for h := range g {
		turned = append(turned, rotated(q[h*l.KDim:(h+1)*l.KDim], at)...)
	}
	out := make([]float32, g*l.VDim)
	tensor.Attend(out, turned, g, tensor.Score{Scale: scale}, l, blocks, n, nil, new(tensor.AttnScratch))
	return out
}

func ropeAt(n, half int) (cos, sin []float32) {
	cos, sin = make([]float32, half), make([]float32, half)
	for i := range half {
		s, c := math.Sincos(float64(n) * math.Pow(1000, -float64(i)/float64(half)))
		cos[i], sin[i] = float32(c), float32(s)
	}
	return cos, sin
}

func rotated(k []float32, pos int) []float32 {
	out := slices.Clone(k)
	cos, sin := ropeAt(pos, len(k)/2)
	tensor.RopeRotateHalf(out, cos, sin)
	return out
}

// history is one sequence with its reference caches, one per head.
type history struct {
	g      Geometry
	store  *Store
	policy *Policy
	naive  []naiveCache
	rows   [][]naiveRow // [head][pos]: the whole text
	r      *rand.Rand
	sc     *tensor.AttnScratch
}

const equipGroup = 2

func newHistory(a *memory.Arena, p *Policy, prompt int, seed uint64) (*history, error) {
	h := &history{policy: p, r: rand.New(rand.NewPCG(seed, 7)), sc: new(tensor.AttnScratch),
		g: Geometry{Layers: 1, KVHeads: 2, Group: equipGroup, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}}}
	h.rows, h.naive = make([][]naiveRow, h.g.KVHeads), make([]naiveCache, h.g.KVHeads)
	read := NewPrefill(a, h.g, tensor.Span{Lo: 0, Hi: h.g.KVHeads})
	if err := read.Reserve(prompt); err != nil {
		return nil, err
	}
	h.write(read, 0, prompt)
	read.Commit(prompt)
	var err error
	if h.store, _, err = handOver(p, []*Store{read}, 0); err != nil {
		return nil, err
	}
	for head := range h.naive {
		for slot := range h.store.Len(0, head) {
			if pos := h.store.Position(0, head, slot); pos >= 0 {
				h.naive[head].rows = append(h.naive[head].rows, h.rows[head][pos])
			}
		}
		slices.SortFunc(h.naive[head].rows, func(x, y naiveRow) int { return cmp.Compare(x.pos, y.pos) })
	}
	return h, nil
}

func (h *history) vector(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = h.r.Float32()*2 - 1
	}
	return v
}

// write generates the tokens [from, to) and writes them, m at a time per head.
func (h *history) write(s *Store, from, to int) {
	l := h.g.Layout
	for head := range h.rows {
		var k, v []float32
		for pos := from; pos < to; pos++ {
			r := naiveRow{pos, h.vector(l.KDim), h.vector(l.VDim)}
			h.rows[head] = append(h.rows[head], r)
			k, v = append(k, rotated(r.k, pos)...), append(v, r.v...)
		}
		s.WriteRun(0, head, from, to-from, k, l.KDim, v, l.VDim)
	}
}

// decode advances the sequence by m tokens in place, and the reference caches naively.
func (h *history) decode(m int) error {
	before := make([][]int32, len(h.naive))
	for head := range h.naive {
		before[head] = slices.Clone(h.store.Head(0, head).Positions)
	}
	from := h.store.Tokens()
	if err := h.store.Reserve(from + m); err != nil {
		return err
	}
	h.write(h.store, from, from+m)
	for head := range h.naive {
		h.twin(head, before[head], from, m)
	}
	return nil
}

func (h *history) twin(head int, before []int32, from, m int) {
	c, now := &h.naive[head], h.store.Head(0, head).Positions
	evicted := map[int]bool{}
	for slot, pos := range before {
		if pos >= 0 && now[slot] != pos {
			evicted[int(pos)] = true
		}
	}
	if h.policy.KeepsAll() {
		evicted = nil
	}
	for pos := from; pos < from+m; pos++ {
		r := h.rows[head][pos]
		if s, ok := streamOf(h.policy); ok { // the sink and ring determine the evicted row
			if len(c.rows) < s.Sink+s.Recent {
				c.rows = append(c.rows, r)
			} else {
				c.shiftAndAppend(s.Sink, r)
			}
			continue
		}
		if h.policy.KeepsAll() || slices.Contains(now, int32(pos)) { // otherwise a later token of the run took its slot
			c.gatherAndAppend(func(p int) bool { return !evicted[p] }, r)
		}
	}
}

func streamOf(p *Policy) (Ring, bool) {
	s, ok := p.Eviction.(Ring)
	return s, ok && p.Compressor == nil
}

// compare compares in-place with naive attention. The tolerance covers float32 sums in another
// order, and rotations that add up.
func (h *history) compare() error {
	l, pos := h.g.Layout, h.store.Tokens()+h.store.staged-1
	relative := h.policy.cachePositions
	rope := func(n int) (cos, sin []float32) { return ropeAt(n, l.KDim/2) }
	for head := range h.naive {
		q := h.vector(equipGroup * l.KDim)
		want := h.naive[head].attend(l, q, equipGroup, 0.7, relative)
		var turned []float32
		for i := range equipGroup {
			turned = append(turned, rotated(q[i*l.KDim:(i+1)*l.KDim], pos)...)
		}
		got := make([]float32, len(want))
		blocks, n, mask := h.store.View(0, head, pos, turned, tensor.Score{Scale: 0.7}, rope, h.sc)
		tensor.Attend(got, turned, equipGroup, tensor.Score{Scale: 0.7}, l, blocks, n, mask, new(tensor.AttnScratch))
		for i := range got {
			if d := math.Abs(float64(got[i] - want[i])); !(d < 2e-5) {
				return fmt.Errorf("head %d at %d tokens: in place %v, naive %v (%v)", head, pos+1, got, want, d)
			}
		}
		if err := checkIndex(h.store, head, pos+1); err != nil {
			return err
		}
	}
	return nil
}

// checkIndex compares the incrementally updated index with one built from scratch.
func checkIndex(s *Store, head, tokens int) error {
	t := s.table(0, head)
	have := slices.Clone(t.offsets)
	t.countEvicted(tokens)
	if !slices.Equal(have, t.offsets) {
		return fmt.Errorf("head %d at %d tokens: offsets %v, from nothing %v", head, tokens, have, t.offsets)
	}
	row, half := make([]byte, s.g.Layout.HalfBytes()), t.planes[halfPlane].blocks
	for slot := range t.n * len(half) / max(1, len(half)) {
		b := slot / tensor.BlockSlots
		copy(row, half[b])
		s.g.Layout.PutHalf(half[b], t.rows()[b], slot%tensor.BlockSlots)
		if !slices.Equal(row, half[b]) {
			return fmt.Errorf("head %d slot %d: the rotate-half cache is not that of its key", head, slot)
		}
	}
	return nil
}

// Theorem 1 of EQUIP, on a thousand random histories of every policy: one token or several at once,
// with repeated and rolled back steps.
func TestInPlaceEqualsNaive(t *testing.T) {
	histories := 10 // in each of rapid's hundred checks
	if testing.Short() {
		histories = 1
	}
	forEach(t, func(t *testing.T, p *Policy) {
		if p.Selector != nil {
			return // has a reference of its own
		}
		t.Parallel()
		a := memory.NewArena(1 << 26)
		defer a.Close()
		rapid.Check(t, func(r *rapid.T) {
			prompt, steps := rapid.IntRange(1, 100).Draw(r, "prompt"), rapid.IntRange(1, 12).Draw(r, "steps")
			m, seed := rapid.IntRange(1, 9).Draw(r, "tokens at once"), rapid.Uint64().Draw(r, "seed")
			for i := range histories {
				h, err := newHistory(a, p, 1+(prompt+17*i)%140, seed+uint64(i))
				if err != nil {
					r.Fatal(err)
				}
				for range steps {
					if h.r.IntN(4) == 0 { // a failed step leaves no trace
						from := h.store.Tokens()
						if err := h.store.Reserve(from + m); err != nil {
							r.Fatal(err)
						}
						h.write(h.store, from, from+m)
						h.store.Rollback()
						for head := range h.rows {
							h.rows[head] = h.rows[head][:from]
						}
					}
					if err := h.decode(1 + h.r.IntN(m)); err != nil {
						r.Fatal(err)
					}
					observeRandom(h)
					h.store.Commit(h.store.staged)
				}
				if err := h.compare(); err != nil {
					r.Fatal(err)
				}
				h.store.Release()
			}
		})
	})
}

func observeRandom(h *history) {
	if h.policy.Scored() {
		for head := range h.naive {
			h.store.Observe(0, head, h.vector(h.store.Len(0, head)))
		}
	}
}

// A text twenty times longer than the cache: the ring wraps twenty times, and every token's
// attention equals the reference's.
func TestLongDecodeEqualsNaive(t *testing.T) {
	for _, p := range []*Policy{Streaming(4, 60), Streaming(4, 60).AtCachePositions(false),
		Streaming(4, 60).AtCachePositions(true), parse("h2o:recent=30,topk=34,step=1").AtCachePositions(false)} {
		t.Run(p.Spec(), func(t *testing.T) {
			t.Parallel()
			a := memory.NewArena(1 << 26)
			defer a.Close()
			h, err := newHistory(a, p, 100, 3)
			if err != nil {
				t.Fatal(err)
			}
			for h.store.Tokens() < 20*64+100 {
				if err := h.decode(1); err != nil {
					t.Fatal(err)
				}
				if err := h.compare(); err != nil {
					t.Fatal(err)
				}
				observeRandom(h)
				h.store.Commit(1)
			}
		})
	}
}
