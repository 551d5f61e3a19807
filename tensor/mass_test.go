package tensor

import (
	"math"
	"testing"
)

// massTwin is AttentionMass in float64, with the whole matrix.
func massTwin(q []float32, nq, first, g int, scale float32, l KVLayout, blocks [][]byte) []float64 {
	mass := make([]float64, first+nq)
	k, v := make([]float32, l.KDim), make([]float32, l.VDim)
	for i := range nq {
		for h := range g {
			row, sum := make([]float64, first+i+1), 0.0
			for j := range row {
				l.Get(blocks[j/BlockSlots], j%BlockSlots, k, v)
				for d := range k {
					row[j] += float64(k[d]) * float64(q[(i*g+h)*l.KDim+d])
				}
				row[j] = math.Exp(row[j] * float64(scale))
				sum += row[j]
			}
			for j, p := range row {
				mass[j] += p / sum
			}
		}
	}
	return mass
}

func TestAttentionMass(t *testing.T) {
	for _, l := range []KVLayout{{Type: F32, KDim: 32, VDim: 32}, {Type: BF16, KDim: 64, VDim: 64}, {Type: BF16, KDim: 40, VDim: 32, Latent: true}, {Type: Int8, KDim: 40, VDim: 32, Latent: true}} {
		const nq, first, g = 37, 150, 2
		blocks := make([][]byte, (first+nq+BlockSlots-1)/BlockSlots)
		rnd := uint32(7)
		next := func() float32 {
			rnd = rnd*1664525 + 1013904223
			return float32(int32(rnd)) / (1 << 31)
		}
		for b := range blocks {
			blocks[b] = make([]byte, l.BlockBytes())
			for s := range BlockSlots {
				k, v := make([]float32, l.KDim), make([]float32, l.VDim)
				for i := range k {
					k[i] = 3 * next()
				}
				l.Put(blocks[b], s, k, v)
			}
		}
		q := make([]float32, nq*g*l.KDim)
		for i := range q {
			q[i] = next()
		}
		whole := make([]float32, first+nq)
		AttentionMass(whole, q, g*l.KDim, nq, first, g, 0.3, l, blocks, new(AttnScratch))
		for j, want := range massTwin(q, nq, first, g, 0.3, l, blocks) {
			if math.Abs(float64(whole[j])-want) > 1e-4 {
				t.Fatalf("%v slot %d: got %v, want %v", l.Type, j, whole[j], want)
			}
		}
		parts := make([]float32, first+nq)
		for lo := 0; lo < nq; lo += 5 {
			AttentionMass(parts, q[lo*g*l.KDim:], g*l.KDim, min(5, nq-lo), first+lo, g, 0.3, l, blocks, new(AttnScratch))
		}
		for j := range whole {
			if whole[j] != parts[j] {
				t.Fatalf("%v slot %d: in chunks %v, at once %v", l.Type, j, parts[j], whole[j])
			}
		}
	}
}
