package tensor

import (
	"math"
	"testing"
)

// massTwin is AttentionMass in float64 with the whole matrix.
func massTwin(q []float32, nq, first, g int, score Score, l KVLayout, blocks [][]byte) []float64 {
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
				if row[j] *= float64(score.Scale); score.Cap != 0 {
					row[j] = float64(score.Cap) * math.Tanh(row[j]/float64(score.Cap))
				}
				row[j] = math.Exp(row[j])
				sum += row[j]
			}
			if score.sinks != nil {
				sum += math.Exp(float64(score.sinks[h]))
			}
			for j, p := range row {
				mass[j] += p / sum
			}
		}
	}
	return mass
}

func TestAttentionMass(t *testing.T) {
	for _, l := range []KVLayout{
		{Type: F32, KDim: 32, VDim: 32},
		{Type: BF16, KDim: 64, VDim: 64},
		{Type: BF16, KDim: 40, VDim: 32, Latent: true},
		{Type: Int8, KDim: 40, VDim: 32, Latent: true},
	} {
		const nq, first, g = 37, 150, 2
		score := Score{Scale: 0.3}
		if l.Type != F32 {
			score.Cap = 0.8
		} else {
			score.Sinks = [][]float32{{1.5, -0.5}}
			score = score.Heads(0, 0, g)
		}
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
		AttentionMass(whole, q, g*l.KDim, nq, first, g, score, l, blocks, new(AttnScratch))
		for j, want := range massTwin(q, nq, first, g, score, l, blocks) {
			if math.Abs(float64(whole[j])-want) > 1e-4 {
				t.Fatalf("%v slot %d: got %v, want %v", l.Type, j, whole[j], want)
			}
		}
		parts := make([]float32, first+nq)
		for lo := 0; lo < nq; lo += 5 {
			AttentionMass(parts, q[lo*g*l.KDim:], g*l.KDim, min(5, nq-lo), first+lo, g, score, l, blocks, new(AttnScratch))
		}
		for j := range whole {
			if whole[j] != parts[j] {
				t.Fatalf("%v slot %d: in chunks %v, at once %v", l.Type, j, parts[j], whole[j])
			}
		}
	}
}

// TestAttentionMasses: one walk gives the results of one walk per part, on every implementation,
// whether scores are kept or not.
func TestAttentionMasses(t *testing.T) {
	for _, l := range []KVLayout{
		{Type: BF16, KDim: 40, VDim: 32, Latent: true},
		{Type: F32, KDim: 40, VDim: 32, Latent: true},
		{Type: BF16, KDim: 32, VDim: 32},
	} {
		const g, parts, nq = 12, 4, 9
		for _, first := range []int{3, 150, keptBlocks * BlockSlots} {
			r, score := rng(5), Score{Scale: 0.3}
			if first == 150 {
				score.Cap = 2
			}
			blocks := make([][]byte, (first+nq+BlockSlots-1)/BlockSlots)
			for b := range blocks {
				blocks[b] = make([]byte, l.BlockBytes())
				for s := range BlockSlots {
					l.Put(blocks[b], s, normal(r, l.KDim), normal(r, l.VDim))
				}
			}
			q := normal(r, nq*g*l.KDim)
			allEqual(t, "masses", func() []float32 {
				var all []float32
				masses := make([][]float32, parts)
				for i := range masses {
					masses[i] = make([]float32, first+nq)
				}
				AttentionMasses(masses, q, g*l.KDim, nq, first, g, score, l, blocks, new(AttnScratch))
				for i, m := range masses {
					alone := make([]float32, first+nq)
					AttentionMass(alone, q[i*g/parts*l.KDim:], g*l.KDim, nq, first, g/parts, score, l, blocks, new(AttnScratch))
					sameBits(t, "part", m, alone)
					all = append(all, m...)
				}
				return all
			})
		}
	}
}

// TestWiden: a widened block equals its rows, with every zero as +0.
func TestWiden(t *testing.T) {
	for _, dt := range []DType{BF16, Int8, F32} {
		l := KVLayout{Type: dt, KDim: 40, VDim: 32, Latent: true}
		block := make([]byte, l.BlockBytes())
		r := rng(3)
		row := normal(r, l.KDim)
		row[0], row[1], row[2] = float32(math.Copysign(0, -1)), 0, 1e-41
		for s := range BlockSlots {
			l.Put(block, s, row, nil)
			row = append(row[7:], row[:7]...)
		}
		for _, n := range []int{1, 5, 63, BlockSlots} {
			allEqual(t, dt.String(), func() []float32 {
				var s AttnScratch
				s.widen(l, block, 0, n)
				want := make([]float32, n*l.KDim)
				for i := range n {
					l.getLatent(block, i, want[i*l.KDim:][:l.KDim])
				}
				if dt != F32 {
					for i := range want {
						want[i] += 0
					}
				}
				sameBits(t, "widened", s.wide[:n*l.KDim], want)
				return want
			})
		}
	}
}
