package tensor

// AttentionMass adds to mass[slot], for slots [0, first+nq), the attention that
// nq successive query tokens of g heads pay to it: the sum over tokens and heads
// of softmax(q.k*scale), token i seeing the slots [0, first+i]. q[i*ldq:] is
// [g][KDim] as in [AttendCausal]; nothing of size queries x slots is kept.
//
// Each slot is one chain of additions in the order of tokens and heads, so a
// prompt that is read in chunks gives the bits of one that is read at once.
func AttentionMass(mass []float32, q []float32, ldq, nq, first, g int, scale float32, l KVLayout, blocks [][]byte, s *AttnScratch) {
	checkAttend(l, blocks, first+nq, g)
	step := l.tokensTogether(g)
	for i := 0; i < nq; i += step {
		s.mass(mass, q[i*ldq:], ldq, min(step, nq-i), first+i, g, scale, l, blocks)
	}
}

func (s *AttnScratch) mass(mass []float32, q []float32, ldq, nq, first, g int, scale float32, l KVLayout, blocks [][]byte) {
	s.begin(l, nq*g)
	s.gather(l, q, ldq, nq, g)
	// Two walks over the keys: the sums must be known before the shares.
	for b := 0; b*BlockSlots < first+nq; b++ {
		s.weigh(l, blocks[b], b, nq, first, g, func(r int, mask uint64) {
			a := &s.soft
			a.s, a.sum, a.valid, a.scale, a.max = &s.s[r], &s.sum[r], mask, scale, s.max[r]
			active.softmax(a)
			s.max[r] = a.max
		})
	}
	inverse := s.o[:nq*g] // sum reduces its lanes in place, so it is asked once
	for r := range inverse {
		inverse[r] = 1 / s.sum[r].sum()
	}
	var unused lanes
	for b := 0; b*BlockSlots < first+nq; b++ {
		out := mass[b*BlockSlots : min((b+1)*BlockSlots, first+nq)]
		s.weigh(l, blocks[b], b, nq, first, g, func(r int, mask uint64) {
			a := &s.soft
			a.s, a.sum, a.valid, a.scale, a.max = &s.s[r], &unused, mask, scale, s.max[r]
			active.softmax(a)
			active.scaleBy(s.s[r][:], inverse[r])
			active.add(out, s.s[r][:len(out)])
		})
	}
}

// weigh scores one block for all rows and calls f for each row that sees part of it.
func (s *AttnScratch) weigh(l KVLayout, block []byte, b, nq, first, g int, f func(r int, mask uint64)) {
	seen := first + 1 - b*BlockSlots
	some := min(nq, max(0, 1-seen))
	s.score(l, block, s.q, some*g, nq*g, min(BlockSlots, seen+nq-1))
	for i := some; i < nq; i++ {
		mask := prefixMask(seen + i)
		for r := i * g; r < (i+1)*g; r++ {
			if l.scaledApart() {
				active.mul64(&s.s[r], l.scales(block, 0))
			}
			f(r, mask)
		}
	}
}
