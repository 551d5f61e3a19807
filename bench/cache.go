package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"shoal/kvcache"
	"shoal/tensor"
)

// CacheUpdate is table 5 of EQUIP: what it costs to evict and insert tokens in
// all heads of one layer of a batch, in place and as published.
type CacheUpdate struct {
	Batch    int `json:"batch"`
	Heads    int `json:"heads"`
	HeadSize int `json:"head_size"`
	Slots    int `json:"slots"`
	Evict    int `json:"evict"`
	// Microseconds of the fastest update of the whole batch.
	Shift   float64 `json:"shift_us"`    // StreamingLLM: rows behind the evicted ones move up
	Ring    float64 `json:"ring_us"`     // the same in place
	Gather  float64 `json:"gather_us"`   // H2O: the rows that stay are gathered into a new cache
	Scatter float64 `json:"scatter_us"`  // the same in place
	OverStr float64 `json:"over_stream"` // Shift / Ring
	OverH2O float64 `json:"over_h2o"`    // Gather / Scatter
}

// CacheShapes are the batches, heads and head sizes of EQUIP's table 5.
var CacheShapes = [][3]int{{1, 64, 64}, {1, 64, 128}, {1, 128, 64}, {8, 64, 64}, {8, 64, 128}, {8, 128, 64}, {32, 64, 64}, {32, 64, 128}}

const (
	cacheSlots = 1024
	cacheSink  = 4
)

// RunCacheUpdate measures one row: bfloat16 keys and values, 1024 slots. In place
// is what the server does, with the copy of the old rows that a roll-back needs;
// the published forms are flat arrays that are moved by whole rows, and their new
// rows are rounded already.
func RunCacheUpdate(pool *tensor.Pool, batch, heads, size, evict int, d time.Duration) (CacheUpdate, error) {
	u := CacheUpdate{Batch: batch, Heads: heads, HeadSize: size, Slots: cacheSlots, Evict: evict}
	if evict < 1 || evict > cacheSlots-cacheSink {
		return u, fmt.Errorf("bench: %d tokens evicted at once of %d slots", evict, cacheSlots)
	}
	n := newNaive(batch*heads, size, evict, pool.Threads())
	u.Shift = fastest(d, func() error { pool.Run(len(n.caches), n.shift); return nil })
	u.Gather = fastest(d, func() error { pool.Run(len(n.caches), n.gather); return nil })
	n = nil
	var err error
	for _, f := range []struct {
		policy kvcache.Policy
		us     *float64
	}{{kvcache.Streaming{Sink: cacheSink, Recent: cacheSlots - cacheSink}, &u.Ring}, {scattered{cacheSlots}, &u.Scatter}} {
		if *f.us, err = inPlace(pool, f.policy, batch, heads, size, evict, d); err != nil {
			return u, err
		}
	}
	u.OverStr, u.OverH2O = u.Shift/u.Ring, u.Gather/u.Scatter
	return u, nil
}

// fastest repeats f for about d, at least 3 times, and gives the microseconds of
// the fastest; less than 0 when f failed.
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

// naive are flat caches, one per sequence and head: rows of uint16, keys then values.
type naive struct {
	caches [][2][]uint16
	spare  chan []uint16
	fresh  []uint16 // new rows
	width  int
	evict  int
}

func newNaive(caches, size, evict, threads int) *naive {
	n := &naive{width: size, evict: evict, fresh: make([]uint16, evict*size), spare: make(chan []uint16, threads+1)}
	for range caches {
		n.caches = append(n.caches, [2][]uint16{make([]uint16, cacheSlots*size), make([]uint16, cacheSlots*size)})
	}
	for range threads + 1 {
		n.spare <- make([]uint16, cacheSlots*size)
	}
	for _, c := range n.caches { // touch the pages
		for i := 0; i < len(c[0]); i += 1024 {
			c[0][i], c[1][i] = 1, 1
		}
	}
	return n
}

func (n *naive) shift(i int) {
	for _, c := range n.caches[i] {
		at := cacheSink * n.width
		copy(c[at:], c[at+n.evict*n.width:])
		copy(c[len(c)-n.evict*n.width:], n.fresh)
	}
}

// gather drops every (slots/evict)-th row.
func (n *naive) gather(i int) {
	stride := cacheSlots / n.evict
	for which, c := range n.caches[i] {
		to, out := <-n.spare, 0
		for row := range cacheSlots {
			if row%stride == stride-1 && row/stride < n.evict {
				continue
			}
			out += copy(to[out:], c[row*n.width:(row+1)*n.width])
		}
		copy(to[out:], n.fresh)
		n.caches[i][which] = to
		n.spare <- c
	}
}

// scattered evicts all over the cache, as H2O does, without the work of choosing.
type scattered struct{ size int }

func (s scattered) Name() string                                     { return "scattered" }
func (s scattered) Spec() string                                     { return "scattered" }
func (s scattered) Needs() kvcache.Needs                             { return kvcache.Needs{} }
func (s scattered) Identity() bool                                   { return false }
func (s scattered) Slots(_, tokens int) int                          { return min(tokens, s.size) }
func (s scattered) Keep(*kvcache.Evidence) kvcache.Kept              { panic("bench: never read") }
func (s scattered) Write(_ *kvcache.Head, pos int) int               { return pos * 389 % s.size }
func (s scattered) Read(*kvcache.Head, []float32, []uint64) []uint64 { return nil }

func inPlace(pool *tensor.Pool, p kvcache.Policy, batch, heads, size, evict int, d time.Duration) (float64, error) {
	g := kvcache.Geometry{Layers: 1, KVHeads: heads, Group: 1, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: size, VDim: size}}
	a := kvcache.NewArena(int64(batch) * 2 * kvcache.ResidentBytes(g, cacheSlots, cacheSlots+64, p))
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

// filled is a store whose first `tokens` slots hold small random rows.
func filled(a *kvcache.Arena, g kvcache.Geometry, p kvcache.Policy, tokens int) (*kvcache.Store, error) {
	s := kvcache.NewStore(a, g, p)
	if err := s.Open(tokens, tokens, tensor.Span{}); err != nil {
		return nil, err
	}
	size := kvcache.RowBytes(g, p)
	block, rows := make([]byte, g.Layout.BlockBytes()), make([]byte, tokens*size)
	k, v := make([]float32, g.Layout.KDim), make([]float32, g.Layout.VDim)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range tokens {
		randomRow(r, k)
		randomRow(r, v)
		g.Layout.Put(block, 0, k, v)
		binary.LittleEndian.PutUint32(rows[i*size:], uint32(i))
		g.Layout.ExportRow(rows[(i+1)*size-g.Layout.RowBytes():], block, 0)
	}
	for layer := range g.Layers {
		for head := range g.KVHeads {
			if err := s.Import(layer, head, 0, rows); err != nil {
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
