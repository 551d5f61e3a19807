package booking

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestChoose compares the choice of an owner with a search of all able sockets. The choice has the most
// bytes left, then the fewest sequences, then the lowest rank.
func TestChoose(t *testing.T) {
	g := kvcache.Geometry{Layers: 1, KVHeads: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}
	fits, refused := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		read := rapid.IntRange(1, 300).Draw(r, "read")
		d := Demand{Policy: kvcache.Full(), Read: read, Tokens: read + 1}
		whole := kvcache.ResidentBytes(g, read, read+1, d.Policy)
		ranks := make([]Rank, rapid.IntRange(1, 4).Draw(r, "ranks"))
		able := make([]bool, len(ranks))
		for i := range ranks {
			room := whole * rapid.Int64Range(0, 6).Draw(r, "room") / 4
			ranks[i] = Rank{ID: fmt.Sprint("n", i), Budget: 2 * whole, Room: room, Heads: g.KVHeads / len(ranks)}
			ranks[i].Sequences = rapid.IntRange(0, 2).Draw(r, "sequences")
			able[i] = rapid.IntRange(0, 3).Draw(r, "able") > 0
		}
		owner := -1
		left := func(o int) int64 { return ranks[o].Room - d.Bytes(g, ranks[o].Heads, true, 0) }
		for o := range ranks {
			ok := able[o]
			for i := range ranks {
				ok = ok && d.Bytes(g, ranks[i].Heads, i == o, 0) <= ranks[i].Room
			}
			if all := d.Fits(g, ranks, o); able[o] && all != ok {
				r.Fatalf("rank %d fits: %v, want %v", o, all, ok)
			}
			fewer := ok && owner >= 0 && left(o) == left(owner) && ranks[o].Sequences < ranks[owner].Sequences
			if ok && (owner < 0 || left(o) > left(owner)) || fewer {
				owner = o
			}
		}
		c := d.Choose(g, ranks, func(o int) bool { return able[o] })
		if c.Owner != owner {
			r.Fatalf("chose rank %d, want %d", c.Owner, owner)
		}
		if owner < 0 {
			refused++
			return
		}
		fits++
		if c.Why != "" {
			r.Fatalf("rank %d can own the sequence, and yet: %s", owner, c.Why)
		}
		for i, bytes := range c.Need {
			if want := d.Bytes(g, ranks[i].Heads, i == owner, 0); bytes != want {
				r.Fatalf("needs %d bytes on rank %d, want %d", bytes, i, want)
			}
		}
	})
	if fits == 0 || refused == 0 {
		t.Errorf("%d sequences fit and %d do not: the test needs both", fits, refused)
	}
}

// TestLeast checks that a demand with Least has room for the sequence after each number of tokens from Least on, under
// sliding windows too.
func TestLeast(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		g := kvcache.Geometry{Layers: 2, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8},
			Windows: []int{rapid.IntRange(1, 200).Draw(r, "window"), 0}, Chunk: rapid.IntRange(1, 100).Draw(r, "chunk")}
		prompt := rapid.IntRange(1, 300).Draw(r, "prompt")
		final := prompt + rapid.IntRange(0, 200).Draw(r, "output")
		d := Demand{Policy: kvcache.Full(), Read: final, Tokens: final, Cut: rapid.Bool().Draw(r, "cut"), Least: prompt}
		heads := rapid.IntRange(0, g.KVHeads).Draw(r, "heads")
		for _, owner := range []bool{true, false} {
			most := d.Bytes(g, heads, owner, 0)
			for read := prompt; read <= final; read++ {
				at := Demand{Policy: d.Policy, Read: read, Tokens: min(read+1, final), Cut: d.Cut}
				if need := at.Bytes(g, heads, owner, 0); need > most {
					r.Fatalf("owner %v: %d bytes at %d tokens, %d expected at most", owner, need, read, most)
				}
			}
		}
	})
}
