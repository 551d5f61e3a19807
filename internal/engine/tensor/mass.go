package tensor

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// AttentionMass adds to mass[slot], for slots [0, first+nq), the attention that the slot receives from
// nq successive query tokens of g heads. That is the sum over tokens and heads of softmax(score of
// q.k), where token i attends to the slots [0, first+i]. q[i*ldq:] is [g][KDim] as in [AttendCausal].
// Of the matrix queries x slots, only the current rows exist at any time.
//
// Each slot is one chain of additions in the order of tokens and heads, so reading a prompt in
// chunks gives the bits of reading it at once.
func AttentionMass(mass []float32, q []float32, ldq, nq, first, g int, score Score, l KVLayout, blocks [][]byte, s *AttnScratch) {
	AttentionMasses([][]float32{mass}, q, ldq, nq, first, g, score, l, blocks, s)
}

// AttentionMasses is AttentionMass for each of len(masses) equal parts of the heads: the bits of
// one call per part, in one walk over the cache.
func AttentionMasses(masses [][]float32, q []float32, ldq, nq, first, g int, score Score, l KVLayout, blocks [][]byte, s *AttnScratch) {
	checkAttend(l, blocks, 0, first+nq, g)
	if len(masses) == 0 || g%len(masses) != 0 {
		panic(fmt.Sprintf("tensor: attention of %d heads in %d parts", g, len(masses)))
	}
	step := l.TokensTogether(g)
	for i := 0; i < nq; i += step {
		s.mass(masses, q[i*ldq:], ldq, min(step, nq-i), first+i, g, score, l, blocks)
	}
}

func (s *AttnScratch) mass(masses [][]float32, q []float32, ldq, nq, first, g int, score Score, l KVLayout, blocks [][]byte) {
	s.begin(l, nq*g)
	s.gather(l, q, ldq, nq, g)
	// Two walks over the slots, since the sums are needed before the shares. The second uses the
	// scores of the first if these are not too many to keep.
	s.kept = s.kept[:0]
	if blocks := (first + nq + BlockSlots - 1) / BlockSlots; blocks <= keptBlocks {
		s.kept = slices.Grow(s.kept, blocks*nq*g)[:blocks*nq*g]
	}
	for b := 0; b*BlockSlots < first+nq; b++ {
		s.weigh(l, blocks[b], b, nq, first, g, score, func(r int, mask uint64) {
			if len(s.kept) > 0 {
				s.kept[b*nq*g+r] = s.s[r]
			}
			s.soft = kernel.SoftmaxArgs{S: &s.s[r], Sum: &s.sum[r], Max: &s.max[r], Rows: 1, Valid: mask, Scale: score.kernelScale()}
			kernel.Active.Softmax(&s.soft)
		})
	}
	inverse := s.o[:nq*g] // sum reduces its lanes in place, so it is called once
	for r := range inverse {
		inverse[r] = 1 / (s.sum[r].Sum() + score.sink(r%g, s.max[r]))
	}
	var unused kernel.Lanes
	for b := 0; b*BlockSlots < first+nq; b++ {
		lo, hi := b*BlockSlots, min((b+1)*BlockSlots, first+nq)
		share := func(r int, mask uint64) {
			s.soft = kernel.SoftmaxArgs{S: &s.s[r], Sum: &unused, Max: &s.max[r], Rows: 1, Valid: mask, Scale: score.kernelScale()}
			kernel.Active.Softmax(&s.soft)
			kernel.Active.ScaleBy(s.s[r][:], inverse[r])
			kernel.Active.Add(masses[r%g*len(masses)/g][lo:hi], s.s[r][:hi-lo])
		}
		if len(s.kept) == 0 {
			s.weigh(l, blocks[b], b, nq, first, g, score, share)
			continue
		}
		seen := first + 1 - b*BlockSlots
		for r := max(0, 1-seen) * g; r < nq*g; r++ {
			s.s[r] = s.kept[b*nq*g+r]
			share(r, prefixMask(seen+r/g))
		}
	}
}

// keptBlocks bounds the scores that a walk keeps: 4 MiB for 64 rows.
const keptBlocks = 256

// weigh scores one block for all rows and calls f for each row that attends to a part of it.
func (s *AttnScratch) weigh(l KVLayout, block []byte, b, nq, first, g int, score Score, f func(r int, mask uint64)) {
	seen := first + 1 - b*BlockSlots
	some := min(nq, max(0, 1-seen))
	s.score(l, block, s.q, some*g, nq*g, min(BlockSlots, seen+nq-1))
	for i := some; i < nq; i++ {
		mask := prefixMask(seen + i)
		for r := i * g; r < (i+1)*g; r++ {
			if l.scaledApart() {
				kernel.Active.Mul64(&s.s[r], l.scales(block, 0))
			}
			score.bound(s.s[r][:])
			f(r, mask)
		}
	}
}
