package probe

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var cacheTypes = []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8}

var cacheComparisons = func() (all []comparison) {
	for _, t := range cacheTypes {
		all = append(all, comparison{fmt.Sprintf("rotation and write to a cache of %v", t), []string{"rope_write_" + t.String()},
			func(k *card, r *rand.Rand) {
				k.rotations(r, t, false)
				k.rotations(r, t, true)
			}}, comparison{fmt.Sprintf("restored rows of a cache of %v", t), []string{"restore_rows_" + t.String()},
			func(k *card, r *rand.Rand) { k.restored(r, t) }})
	}
	return all
}()

// hostCache is the caches of some sequences, as the host has them: block lists in an arena of blocks.
// Memory that was never written is NaN.
type hostCache struct {
	layout  tensor.KVLayout
	arena   []byte
	tables  []uint32
	rows    []launch.Row // one per sequence
	kvheads int
}

// Caches in which the comparisons work: they use the last one.
const layers = 2

func newHostCache(t tensor.DType, kvheads, dim int) *hostCache {
	return &hostCache{layout: tensor.KVLayout{Type: t, KDim: dim, VDim: dim}, kvheads: kvheads}
}

// add adds a sequence of some slots, with its blocks in a random order.
func (c *hostCache) add(r *rand.Rand, slots int) {
	stride := (slots+tensor.BlockSlots-1)/tensor.BlockSlots + 1
	c.rows = append(c.rows, launch.Row{Slot: uint32(slots - 1), Table: uint32(len(c.tables)), Stride: uint32(stride)})
	have := len(c.arena) / c.layout.BlockBytes()
	for _, b := range r.Perm(layers * c.kvheads * stride) {
		c.tables = append(c.tables, uint32(have+b))
	}
	more := make([]byte, layers*c.kvheads*stride*c.layout.BlockBytes())
	for i := range more {
		more[i] = 0xff
	}
	c.arena = append(c.arena, more...)
}

// blocks returns the blocks of one KV head of a sequence, in the last cache.
func (c *hostCache) blocks(sequence, head int) (b [][]byte) {
	row, size := c.rows[sequence], c.layout.BlockBytes()
	for _, n := range c.tables[int(row.Table)+((layers-1)*c.kvheads+head)*int(row.Stride):][:row.Stride] {
		b = append(b, c.arena[int(n)*size:][:size])
	}
	return b
}

func (k *card) cache(c *hostCache) launch.Cache {
	return launch.Cache{
		Type: c.layout.Type, Arena: k.upload(c.arena), Tables: k.upload(c.tables), Index: layers - 1, KVHeads: c.kvheads,
		HeadDim: c.layout.KDim,
	}
}

// place gives the KV heads of all sequences other slots. The rows there are random, and half of them are
// saved in a new last block. It returns the places (sequence, head), and that block.
func (c *hostCache) place(r *rand.Rand) (places []launch.Place, saved []byte) {
	size := c.layout.BlockBytes()
	block := uint32(len(c.arena) / size)
	c.arena = append(c.arena, make([]byte, size)...)
	saved = c.arena[int(block)*size:]
	for i := range c.rows {
		c.fill(r, i)
		for range c.kvheads {
			p := launch.Place{Slot: r.Uint32N(c.rows[i].Slot + 1), Block: launch.NoBlock, Saved: uint32(tensor.BlockSlots - 1 - len(places))}
			if len(places)%2 == 0 {
				p.Block = block
			}
			places = append(places, p)
		}
	}
	return places, saved
}

func (k *card) rotations(r *rand.Rand, t tensor.DType, placed bool) {
	const kvheads, group, eps = 2, 3, 1e-6
	for _, dim := range []int{64, 80, 256} {
		for _, normed := range []bool{false, true} {
			c := newHostCache(t, kvheads, dim)
			for _, slots := range []int{1, 64, 77} {
				c.add(r, slots)
			}
			var places []launch.Place
			var saved []byte
			if placed {
				places, saved = c.place(r)
			}
			n, heads, ld := len(c.rows), kvheads*group, (kvheads*group+2*kvheads)*dim+8
			qkv := normal(r, n*ld, 1)
			clear(qkv[(heads+kvheads)*dim:][:dim]) // a value of zeros
			if !normed {
				qkv[ld+heads*dim+3], qkv[ld+(heads+kvheads)*dim+5] = nan, inf
			}
			cos, sin := make([]float32, n*dim/2), make([]float32, n*dim/2)
			for i := range cos {
				s, c := math.Sincos(r.Float64() * 7)
				sin[i], cos[i] = float32(s), float32(c)
			}
			qnorm, knorm := normal(r, dim, 1), normal(r, dim, 1)
			o := launch.RopeWrite{
				Cache: k.cache(c), QKV: k.upload(qkv), Ld: ld, Heads: heads,
				Rotation: launch.Rotation{Cos: k.upload(cos), Sin: k.upload(sin), Eps: eps},
				Rows:     k.upload(launch.RowsBytes(c.rows)), N: n,
			}
			if normed {
				o.QNorm, o.KNorm = k.upload(qnorm), k.upload(knorm)
			}
			if placed {
				b := make([]byte, launch.PlaceBytes*len(places))
				for i, p := range places {
					p.Put(b[launch.PlaceBytes*i:])
				}
				o.Places = k.upload(b)
			}
			k.run(o)
			for i := range n {
				x, slot := qkv[i*ld:], int(c.rows[i].Slot)
				head := func(h int) []float32 { return x[h*dim:][:dim] }
				turn := func(x, norm []float32) []float32 {
					if normed {
						tensor.RMSNorm(x, x, norm, eps)
					}
					tensor.RopeRotateHalf(x, cos[i*dim/2:][:dim/2], sin[i*dim/2:][:dim/2])
					return x
				}
				for h := range heads {
					turn(head(h), qnorm)
				}
				for h := range kvheads {
					key := turn(append([]float32{}, head(heads+h)...), knorm)
					if placed {
						p := places[i*kvheads+h]
						if slot = int(p.Slot); p.Block != launch.NoBlock {
							c.layout.SaveRow(saved, int(p.Saved), c.blocks(i, h)[slot/tensor.BlockSlots], slot%tensor.BlockSlots)
						}
					}
					c.layout.Put(c.blocks(i, h)[slot/tensor.BlockSlots], slot%tensor.BlockSlots, key, head(heads+kvheads+h))
				}
			}
			what := fmt.Sprintf("%d elements, norms %v, placed %v", dim, normed, placed)
			k.equalFloats(what+", queries", o.QKV, qkv)
			k.equalCache(what, o.Arena, c)
		}
	}
}

// restored gives half of the slots of two blocks the rows of two others, in row form.
func (k *card) restored(r *rand.Rand, t tensor.DType) {
	const blocks = 4
	for _, dim := range []int{64, 80, 256} {
		l := tensor.KVLayout{Type: t, KDim: dim, VDim: dim}
		size := l.BlockBytes()
		arena := make([]byte, blocks*size)
		for i := range arena {
			arena[i] = byte(r.Uint32())
		}
		got := k.upload(arena)
		order, rows := r.Perm(blocks*tensor.BlockSlots), []byte(nil)
		for i, at := range r.Perm(2 * tensor.BlockSlots)[:tensor.BlockSlots] {
			to, from := at/tensor.BlockSlots, 2+order[i]%2
			row := launch.SavedRow{
				Block: uint32(to), Slot: uint32(at % tensor.BlockSlots), From: uint32(from), Row: uint32(order[i] / 2 % tensor.BlockSlots),
			}
			rows = append(rows, make([]byte, launch.SavedRowBytes)...)
			row.Put(rows[launch.SavedRowBytes*i:])
			l.LoadRow(arena[to*size:][:size], int(row.Slot), arena[from*size:][:size], int(row.Row))
		}
		k.run(launch.RestoreRows{Type: t, Arena: got, HeadDim: dim, Rows: k.upload(rows), N: len(rows) / launch.SavedRowBytes})
		k.equalBytes(fmt.Sprintf("%d elements", dim), k.download(got, len(arena)), arena)
	}
}

// equalCache compares an arena. The bits of NaN in caches of floats are undefined.
func (k *card) equalCache(what string, p cuda.Pointer, c *hostCache) {
	got := k.download(p, len(c.arena))
	if c.layout.Type == tensor.BF16 {
		for i := 0; i < len(got); i += 2 {
			if bothNaN := isNaN16(got[i:]) && isNaN16(c.arena[i:]); bothNaN {
				copy(got[i:], c.arena[i:i+2])
			}
		}
	}
	if c.layout.Type == tensor.F32 {
		k.equalFloats(what+", cache", p, floatsOf(c.arena))
		return
	}
	k.equalBytes(what, got, c.arena)
}

func (k *card) equalBytes(what string, got, want []byte) {
	if k.err == nil {
		if n, first := differences(got, want); n > 0 {
			k.err = fmt.Errorf("%s, cache: %d of %d bytes differ from the CPU's, first at %d", what, n, len(got), first)
		}
	}
}

func isNaN16(b []byte) bool { return b[1]&0x7f == 0x7f && b[0]&0x80 != 0 && b[0]&0x7f != 0 }
