package kvcache

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// In decode a layer with a window gives the bits of attention over the whole cache with the earlier
// tokens masked. It shows exactly the window, oldest first, and holds no more blocks than that
// takes.
func TestWindowIsAMask(t *testing.T) {
	l := tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}
	const longest = tensor.RunSlots - 20 + 140
	var whole [2][][]byte // [head], every token in the slot of its position
	for head := range whole {
		for p := range longest {
			if p%tensor.BlockSlots == 0 {
				whole[head] = append(whole[head], make([]byte, l.BlockBytes()))
			}
			k, v := row(Geometry{Layout: l}, 1, head, p)
			l.Put(whole[head][p/tensor.BlockSlots], p%tensor.BlockSlots, k, v)
		}
	}
	for _, size := range []int{1, 40, 63, 64, 65, 66, 129, 200, tensor.RunSlots + 30, -64, -70, -tensor.RunSlots} {
		g := Geometry{Layers: 2, KVHeads: 2, Layout: l, Windows: []int{0, max(size, -size)}, Chunked: size < 0}
		for _, prompt := range []int{1, 30, 64, 65, 129, 300, tensor.RunSlots - 20} {
			a := memory.NewArena(1 << 30)
			s := ownedOf(t, a, g, Full(), prompt)
			var scratch tensor.AttnScratch
			for range 140 {
				pos := s.Tokens()
				if err := s.Reserve(pos + 1); err != nil {
					t.Fatal(err)
				}
				write(s, pos, pos+1)
				for head := range g.KVHeads {
					q := make([]float32, l.KDim)
					for i := range q {
						q[i] = float32((pos+i*head)%5) / 1000
					}
					blocks, n, mask := s.View(1, head, pos, q, tensor.Score{Scale: 1}, nil, &scratch)
					if want := g.Windows[1]/tensor.BlockSlots + 2; len(s.Blocks(1, head)) > want {
						t.Fatalf("window %d holds %d blocks, want at most %d", size, len(s.Blocks(1, head)), want)
					}
					got := make([]float32, l.VDim)
					tensor.Attend(got, q, 1, tensor.Score{Scale: 0.5}, l, blocks, n, mask, new(tensor.AttnScratch))
					valid := make([]uint64, len(whole[head]))
					oldest := max(0, pos-size+1)
					if size < 0 { // chunks
						oldest = pos / -size * -size
					}
					for p := oldest; p <= pos; p++ {
						valid[p/tensor.BlockSlots] |= 1 << (p % tensor.BlockSlots)
					}
					want := make([]float32, l.VDim)
					tensor.Attend(want, q, 1, tensor.Score{Scale: 0.5}, l, whole[head], pos+1, valid, new(tensor.AttnScratch))
					if !slices.Equal(got, want) {
						t.Fatalf("window %d, position %d: %v, want %v", size, pos, got, want)
					}
				}
				s.Commit(1)
			}
			s.Release()
			a.Close()
		}
	}
}

// A model in which five of six layers have a window of 1024 tokens takes a sixth of the cache for a
// long context, and a policy applies to the sixth layer alone.
func TestWindowBytes(t *testing.T) {
	l := tensor.KVLayout{Type: tensor.BF16, KDim: 256, VDim: 256}
	g := Geometry{Layers: 6, KVHeads: 4, Layout: l, Windows: []int{1024, 1024, 1024, 1024, 1024, 0}}
	plain := g
	plain.Windows = nil
	const tokens = 131072
	row := int64(l.BlockBytes()) / tensor.BlockSlots * int64(g.KVHeads)
	full := ResidentBytes(g, tokens, tokens, Full())
	table := int64(4 * g.KVHeads) // per slot of a ring
	if want := tokens*row + 5*(1024+tensor.BlockSlots)*(row+table); full != want {
		t.Errorf("%d bytes, want %d", full, want)
	}
	if whole := ResidentBytes(plain, tokens, tokens, Full()); full > whole/5 {
		t.Errorf("%d bytes with windows, %d without", full, whole)
	}
	p := parse("snapstream:sink=4,recent=1020,topk=1024,obs=64,pool=7")
	if got, want := ResidentBytes(g, tokens, tokens, p), 2048*(row+table)+5*(1024+tensor.BlockSlots)*(row+table); got != want {
		t.Errorf("snapstream: %d bytes, want %d", got, want)
	}
	if got, want := StatisticsBytes(g, 2, tokens, p)*6, StatisticsBytes(plain, 2, tokens, p); got != want {
		t.Errorf("statistics are %d bytes for one layer of six, %d for all", got/6, want)
	}
}
