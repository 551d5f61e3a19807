package tensor

import (
	"fmt"
	"testing"
)

// chosenMasks are slots of several tokens: random ones, clusters, blocks that every token reads whole, and the
// end of a causal block. The first token reads no slot, the last one few.
func chosenMasks(tokens, blocks int, random func() uint64) [][]uint64 {
	chosen := make([][]uint64, tokens)
	for i := range chosen {
		chosen[i] = make([]uint64, blocks-(tokens-1-i)%2)
		for b := range chosen[i] {
			switch {
			case i == 0:
			case i == tokens-1:
				chosen[i][b] = 1 << (b % BlockSlots) * uint64(b%2)
			case b == len(chosen[i])-1:
				chosen[i][b] = prefixMask(20 + i)
			case b%9 == 0:
				chosen[i][b] = ^uint64(0)
			case random()%3 > 0:
				chosen[i][b] = prefixMask(20) << (random() % 64)
			case random()%2 > 0:
				chosen[i][b] = random() & (random() << 1)
			}
		}
	}
	return chosen
}

// TestAttendChosenIsAttend compares tokens that read a cache together with one token at a time, on every
// implementation. Some tokens read several runs of blocks, which begin at different blocks.
func TestAttendChosenIsAttend(t *testing.T) {
	var s AttnScratch
	for _, l := range layouts {
		if l.Latent || l.KDim > 200 || small() && l.KDim > 64 {
			continue
		}
		r := rng(uint64(l.KDim + l.VDim))
		for _, c := range []struct{ tokens, blocks, g int }{{1, 3, 1}, {2, 20, 2}, {9, 70, 4}, {5, 19, 3}, {4, 40, 7}} {
			if small() && c.blocks > 20 {
				continue
			}
			blocks := longCache(r, l, c.blocks*BlockSlots)
			ldq, ldo := c.g*l.KDim+5, c.g*l.VDim+3
			q, chosen := normal(r, c.tokens*ldq), chosenMasks(c.tokens, c.blocks, r.Uint64)
			if c.tokens == 2 { // every block whole
				for _, mask := range chosen {
					for b := range mask {
						mask[b] = ^uint64(0)
					}
				}
			}
			for _, score := range []Score{{Scale: 0.3}, {Scale: 0.3, Cap: 2}, {Scale: 0.2, Sinks: [][]float32{normal(r, c.g)}}} {
				score = score.Heads(0, 0, c.g)
				want := make([]float32, c.tokens*ldo)
				for i, mask := range chosen {
					if list, n, picked := s.PickSlots(blocks, append([]uint64(nil), mask...), len(mask)*BlockSlots); len(list) > 0 {
						Attend(want[i*ldo:], q[i*ldq:], c.g, score, l, list, n, picked, &s)
					}
				}
				forEach(t, func(t *testing.T) {
					out := make([]float32, c.tokens*ldo)
					AttendChosen(out, ldo, q, ldq, c.g, score, l, blocks, chosen, &s)
					sameBits(t, fmt.Sprintf("%+v %+v cap %v", l, c, score.Cap), out, want)
				})
			}
		}
	}
}

func TestAttendChosenRefuses(t *testing.T) {
	var s AttnScratch
	f32, latent := KVLayout{Type: F32, KDim: 8, VDim: 8}, KVLayout{Type: F32, KDim: 8, VDim: 8, Latent: true}
	for name, c := range map[string]struct {
		l      KVLayout
		blocks int
	}{"latent rows": {latent, 2}, "a mask longer than the cache": {f32, 1}} {
		blocks := newCache(rng(1), c.l, c.blocks*BlockSlots)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic for %s", name)
				}
			}()
			AttendChosen(make([]float32, 8), 8, make([]float32, 8), 8, 1, Score{Scale: 1}, c.l, blocks, [][]uint64{{1, 1}}, &s)
		}()
	}
}
