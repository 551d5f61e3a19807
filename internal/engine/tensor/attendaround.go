package tensor

// AttendAround is attention that is not causal, for nq successive tokens of a text of n tokens whose
// keys and values are all in the cache. Token first+i has its queries at q[i*ldq:] as [g][KDim] and
// attends to all n slots, or with window > 0 to those at a distance below window on both sides. It
// writes out[i*ldo:] as [g][VDim]. Blocks outside of all windows may be nil. The bits are those of
// nq calls of Attend.
func AttendAround(out []float32, ldo int, q []float32, ldq int, nq, first, n, window, g int, score Score,
	l KVLayout, blocks [][]byte, s *AttnScratch) {
	step := l.TokensTogether(g)
	for i := 0; i < nq; i += step {
		s.around(out[i*ldo:], ldo, q[i*ldq:], ldq, min(step, nq-i), first+i, n, window, g, score, l, blocks)
	}
}

func (s *AttnScratch) around(out []float32, ldo int, q []float32, ldq int, nq, first, n, window, g int,
	score Score, l KVLayout, blocks [][]byte) {
	end := n
	if window > 0 {
		end = min(n, first+nq-1+window)
	}
	checkAttend(l, blocks, windowStart(first, window), end, g)
	s.begin(l, nq*g)
	s.gather(l, q, ldq, nq, g)
	for b := windowStart(first, window) / BlockSlots; b*BlockSlots < end; b++ {
		if b%RunBlocks == 0 {
			s.endRun(l)
		}
		s.score(l, blocks[b], s.q, 0, nq*g, min(BlockSlots, end-b*BlockSlots))
		for i := 0; i < nq; {
			mask, next := aroundMask(first+i, n, window, b), i+1
			for next < nq && aroundMask(first+next, n, window, b) == mask { // rows with the same slots go together
				next++
			}
			if mask != 0 {
				s.soften(l, blocks[b], i*g, next*g, mask, score)
				s.accumulate(l, blocks[b], i*g, next*g, mask)
			}
			i = next
		}
	}
	state := s.end(l)
	for i := range nq {
		state.divide(out[i*ldo:], l.VDim, l.VDim, i*g, (i+1)*g, score)
	}
}

// aroundMask returns the slots of block b that the token at a position attends to.
func aroundMask(position, n, window, b int) uint64 {
	lo, hi := 0, n
	if window > 0 {
		lo, hi = max(0, position+1-window), min(n, position+window)
	}
	return prefixMask(max(0, hi-b*BlockSlots)) &^ prefixMask(max(0, lo-b*BlockSlots))
}
