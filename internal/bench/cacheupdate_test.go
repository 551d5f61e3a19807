package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	kvmemory "github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// cacheUpdate is a row of table 5 of EQUIP: the cost of evicting and inserting tokens in all heads
// of one layer of a batch, in place and as published.
type cacheUpdate struct {
	Batch    int
	Heads    int
	HeadSize int
	Slots    int
	Evict    int
	// Microseconds of the fastest update of the whole batch.
	Publish float64 // StreamingLLM: copy the remaining rows and the new ones to a new cache
	Append  float64 // the same with two alternating caches: no allocation
	Shift   float64 // the same in one cache: rows after the evicted ones move up
	Ring    float64 // the same in place
	Gather  float64 // H2O: gather the remaining rows into a new cache
	Scatter float64 // the same in place
	OverPub float64 // Publish / Ring
	OverApp float64 // Append / Ring
	OverStr float64 // Shift / Ring
	OverH2O float64 // Gather / Scatter
}

// cacheShapes has the batches, heads and head sizes of EQUIP's table 5.
var cacheShapes = [][3]int{{1, 64, 64}, {1, 64, 128}, {1, 128, 64}, {8, 64, 64}, {8, 64, 128}, {8, 128, 64}, {32, 64, 64}, {32, 64, 128}}

// BenchmarkCacheUpdate prints table 5 of EQUIP, measured on this machine.
func BenchmarkCacheUpdate(b *testing.B) {
	pool := tensor.NewPool(runtime.GOMAXPROCS(0))
	defer pool.Close()
	fmt.Printf("%v; bf16, %d slots\n", ThisMachine(), cacheSlots)
	fmt.Printf("%6s %6s %6s %6s %11s %11s %11s %11s %8s %8s %8s %11s %11s %8s\n", "batch", "heads", "size", "evict",
		"new cache", "two in turn", "shift us", "in place", "x new", "x two", "x shift", "gather us", "in place", "x")
	for _, evict := range []int{1, 64} {
		for _, s := range cacheShapes {
			u, err := runCacheUpdate(pool, s[0], s[1], s[2], evict, 200*time.Millisecond)
			if err != nil {
				b.Fatal(err)
			}
			fmt.Printf("%6d %6d %6d %6d %11.0f %11.0f %11.0f %11.0f %8.2f %8.2f %8.2f %11.0f %11.0f %8.2f\n", u.Batch, u.Heads,
				u.HeadSize, u.Evict, u.Publish, u.Append, u.Shift, u.Ring, u.OverPub, u.OverApp, u.OverStr, u.Gather, u.Scatter, u.OverH2O)
		}
	}
}

const (
	cacheSlots = 1024
	cacheSink  = 4
)

// runCacheUpdate measures one row: bfloat16 keys and values, 1024 slots. All ways get the new rows
// as float32 and round them with the same kernel. "In place" is the server's way, including slot
// tables and the copy of the old rows for a roll-back. The published forms are flat arrays moved by
// whole rows, without both.
func runCacheUpdate(pool *tensor.Pool, batch, heads, size, evict int, d time.Duration) (cacheUpdate, error) {
	u := cacheUpdate{Batch: batch, Heads: heads, HeadSize: size, Slots: cacheSlots, Evict: evict}
	if evict < 1 || evict > cacheSlots-cacheSink {
		return u, fmt.Errorf("bench: %d tokens evicted at once of %d slots", evict, cacheSlots)
	}
	n := newNaive(batch*heads, size, evict)
	u.Append = fastest(d, func() error { pool.Run(len(n.caches), n.append); return nil })
	u.Shift = fastest(d, func() error { pool.Run(len(n.caches), n.shift); return nil })
	u.Gather = fastest(d, func() error { pool.Run(len(n.caches), n.gather); return nil })
	a := kvmemory.NewArena(1 << 40)
	defer a.Close()
	var err error
	free := func() {}
	u.Publish = fastest(d, func() error {
		old := free
		if free, err = n.published(a, pool); err == nil {
			old()
		}
		return err
	})
	if err != nil {
		return u, err
	}
	n = nil
	for _, f := range []struct {
		policy *kvcache.Policy
		us     *float64
	}{
		{kvcache.Streaming(cacheSink, cacheSlots-cacheSink), &u.Ring},
		{kvcache.Compose("scattered", "scattered", kvcache.Parts{Eviction: scattered{cacheSlots}}), &u.Scatter},
	} {
		if *f.us, err = inPlace(pool, f.policy, batch, heads, size, evict, d); err != nil {
			return u, err
		}
	}
	u.OverPub, u.OverApp, u.OverStr, u.OverH2O = u.Publish/u.Ring, u.Append/u.Ring, u.Shift/u.Ring, u.Gather/u.Scatter
	return u, nil
}

// fastest repeats f for about d, at least 3 times, and returns the microseconds of the fastest run;
// negative if f failed.
func fastest(d time.Duration, f func() error) float64 {
	best, until := time.Duration(1<<62), time.Now().Add(d)
	for i := 0; i < 3 || time.Now().Before(until); i++ {
		began := time.Now()
		if f() != nil {
			return -1
		}
		best = min(best, time.Since(began))
	}
	return float64(best.Nanoseconds()) / 1e3
}

// naive has flat caches, one per sequence and head: bf16 rows of keys and of values.
type naive struct {
	caches, spare [][2][]byte
	fresh         []float32 // new rows
	width         int       // bytes per row
	evict         int
}

func newNaive(caches, size, evict int) *naive {
	n := &naive{width: 2 * size, evict: evict, fresh: make([]float32, evict*size)}
	for _, list := range []*[][2][]byte{&n.caches, &n.spare} {
		for range caches {
			c := [2][]byte{make([]byte, cacheSlots*n.width), make([]byte, cacheSlots*n.width)}
			for i := 0; i < len(c[0]); i += 1024 { // touch the pages
				c[0][i], c[1][i] = 1, 1
			}
			*list = append(*list, c)
		}
	}
	return n
}

func (n *naive) shift(i int) {
	for _, c := range n.caches[i] {
		at := cacheSink * n.width
		copy(c[at:], c[at+n.evict*n.width:])
		tensor.RoundBF16(c[len(c)-n.evict*n.width:], n.fresh)
	}
}

func (n *naive) append(i int) {
	for which, c := range n.caches[i] {
		to, at := n.spare[i][which], cacheSink*n.width
		copy(to, c[:at])
		copy(to[at:], c[at+n.evict*n.width:])
		tensor.RoundBF16(to[len(to)-n.evict*n.width:], n.fresh)
	}
	n.caches[i], n.spare[i] = n.spare[i], n.caches[i]
}

// published is append with an allocation of the new cache, which is freed by the old one.
func (n *naive) published(a *kvmemory.Arena, pool *tensor.Pool) (free func(), err error) {
	blocks, err := a.Alloc(cacheSlots*n.width, 2*len(n.caches))
	if err != nil {
		return nil, err
	}
	for i := range n.spare {
		n.spare[i] = [2][]byte{blocks[2*i], blocks[2*i+1]}
	}
	pool.Run(len(n.caches), n.append)
	return func() { a.Release(blocks) }, nil
}

// gather drops every (slots/evict)-th row.
func (n *naive) gather(i int) {
	stride := cacheSlots / n.evict
	for which, c := range n.caches[i] {
		to, out := n.spare[i][which], 0
		for row := range cacheSlots {
			if row%stride == stride-1 && row/stride < n.evict {
				continue
			}
			out += copy(to[out:], c[row*n.width:(row+1)*n.width])
		}
		tensor.RoundBF16(to[out:], n.fresh)
	}
	n.caches[i], n.spare[i] = n.spare[i], n.caches[i]
}

// scattered evicts slots throughout the cache, like H2O, without the cost of choosing them.
type scattered struct{ size int }

func (s scattered) Slots(tokens int) int              { return min(tokens, s.size) }
func (s scattered) Slot(_ *kvcache.Head, pos int) int { return pos * 389 % s.size }

func inPlace(pool *tensor.Pool, p *kvcache.Policy, batch, heads, size, evict int, d time.Duration) (float64, error) {
	g := kvcache.Geometry{Layers: 1, KVHeads: heads, Group: 1, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: size, VDim: size}}
	a := kvmemory.NewArena(int64(batch) * 2 * kvcache.ResidentBytes(g, cacheSlots, cacheSlots+64, p))
	defer a.Close()
	stores := make([]*kvcache.Store, batch)
	for i := range stores {
		s, err := filled(a, g, p, cacheSlots)
		if err != nil {
			return 0, err
		}
		stores[i] = s
	}
	fresh := make([]float32, evict*size)
	var failed error
	us := fastest(d, func() error {
		for _, s := range stores {
			if failed = s.Reserve(s.Tokens() + evict); failed != nil {
				return failed
			}
		}
		pool.Run(batch*heads, func(i int) {
			s := stores[i/heads]
			s.WriteRun(0, i%heads, s.Tokens(), evict, fresh, size, fresh, size)
		})
		for _, s := range stores {
			s.Commit(evict)
		}
		return nil
	})
	return us, failed
}

// filled returns a store whose first `tokens` slots have small random rows.
func filled(a *kvmemory.Arena, g kvcache.Geometry, p *kvcache.Policy, tokens int) (*kvcache.Store, error) {
	s := kvcache.NewStore(a, g, p)
	if err := s.Open(tokens, tokens, tensor.Span{}); err != nil {
		return nil, err
	}
	size := g.Layout.RowBytes()
	block, body := make([]byte, g.Layout.BlockBytes()), make([]byte, tokens*(4+size))
	positions, rows := body[:4*tokens], body[4*tokens:]
	k, v := make([]float32, g.Layout.KDim), make([]float32, g.Layout.VDim)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range tokens {
		randomRow(r, k)
		randomRow(r, v)
		g.Layout.Put(block, 0, k, v)
		binary.LittleEndian.PutUint32(positions[4*i:], uint32(i))
		g.Layout.ExportRow(rows[i*size:], block, 0)
	}
	for layer := range g.Layers {
		for head := range g.KVHeads {
			b := rowblock.Block{Layers: tensor.Span{Lo: layer, Hi: layer + 1}, Heads: tensor.Span{Lo: head, Hi: head + 1},
				Slots: tensor.Span{Lo: 0, Hi: tokens}, Planes: rowblock.Positions | rowblock.Rows}
			if err := s.WriteRows(b, body); err != nil {
				return nil, err
			}
		}
	}
	return s, s.Seal()
}

func randomRow(r *rand.Rand, x []float32) {
	for i := range x {
		x[i] = r.Float32() - 0.5
	}
}
