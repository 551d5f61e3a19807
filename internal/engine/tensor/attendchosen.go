package tensor

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// AttendChosen is Attend for several tokens, each of which reads its own slots of one cache. chosen[i] has a
// bit per slot that token i reads. Its queries are at q[i*ldq:] as [g][KDim], and its result goes to
// out[i*ldo:] as [g][VDim]. The layout must not be latent. The bits are those of Attend for each token, over
// the blocks that PickSlots lists. All tokens read a block before the next one, so memory is read once.
func AttendChosen(out []float32, ldo int, q []float32, ldq, g int, score Score, l KVLayout, blocks [][]byte,
	chosen [][]uint64, s *AttnScratch) {
	last := 0
	for _, valid := range chosen {
		last = max(last, len(valid))
		checkSlots(l, blocks, min(len(valid), len(blocks))*BlockSlots, g, valid, nil)
	}
	if l.Latent || last > len(blocks) {
		panic("tensor: attention to chosen slots of latent rows, or beyond the cache")
	}
	s.begin(l, len(chosen)*g)
	s.gather(l, q, ldq, len(chosen), g)
	c := &s.chosen
	c.begin(chosen)
	defer c.begin(nil)
	next := c.union(0)
	for b := 0; b < last; b++ {
		read := next
		if next = c.union(b + 1); next != 0 {
			s.fetchSome(l, blocks[b+1], next)
		}
		if read != 0 {
			s.attendChosen(l, &blocks[b], b, g, score)
		}
	}
	for i := range chosen {
		state := s.runState.rows(i*g, (i+1)*g, l.VDim)
		if c.folded[i] {
			s.foldChosen(l, i, g)
			state = s.before.rows(i*g, (i+1)*g, l.VDim)
		}
		state.divide(out[i*ldo:], l.VDim, l.VDim, 0, g, score)
	}
}

// chosenSlots are the slots that several tokens read, and the state of each token's runs.
type chosenSlots struct {
	valid  [][]uint64
	blocks []int  // per token: number of blocks read in its current run
	folded []bool // per token: whether a run has ended
}

func (c *chosenSlots) begin(valid [][]uint64) {
	c.valid = valid
	c.blocks, c.folded = append(c.blocks[:0], make([]int, len(valid))...), append(c.folded[:0], make([]bool, len(valid))...)
}

// union returns the slots of block b that any token reads.
func (c *chosenSlots) union(b int) (all uint64) {
	for i := range c.valid {
		all |= c.of(i, b)
	}
	return all
}

func (c *chosenSlots) of(token, b int) uint64 {
	if b < len(c.valid[token]) {
		return c.valid[token][b]
	}
	return 0
}

// attendChosen attends to block b.
func (s *AttnScratch) attendChosen(l KVLayout, block *[]byte, b, g int, score Score) {
	c, whole := &s.chosen, true
	for i := range c.valid {
		mask := c.of(i, b)
		if whole = whole && mask == ^uint64(0); mask == 0 {
			continue
		}
		if c.blocks[i] == RunBlocks {
			s.foldChosen(l, i, g)
		}
		c.blocks[i]++
	}
	if rows := len(c.valid) * g; whole {
		s.score(l, *block, s.q, 0, rows, BlockSlots)
		s.soften(l, *block, 0, rows, prefixMask(BlockSlots), score)
		s.accumulate(l, *block, 0, rows, prefixMask(BlockSlots))
		return
	}
	picked := pickAttend(kernel.Active.Picked, l, g)
	for i := range c.valid {
		switch mask, r0, r1 := c.of(i, b), i*g, (i+1)*g; {
		case mask == 0:
		case picked != nil && score.Cap == 0:
			s.attendPicked(picked, l, block, s.q, r0, mask, score)
		default:
			s.scoreSome(l, *block, s.q, r0, r1, mask)
			s.soften(l, *block, r0, r1, mask, score)
			s.accumulate(l, *block, r0, r1, mask)
		}
	}
}

// foldChosen ends the run of a token.
func (s *AttnScratch) foldChosen(l KVLayout, token, g int) {
	c := &s.chosen
	run, before := s.runState.rows(token*g, (token+1)*g, l.VDim), s.before.rows(token*g, (token+1)*g, l.VDim)
	if !c.folded[token] {
		before.reset()
	}
	before.fold(&run, l.VDim, &s.join)
	c.folded[token], c.blocks[token] = true, 0
}

// Masks returns scratch with a bit for each of n slots of each token, which the next call reuses. They are
// apart from Mask.
func (s *AttnScratch) Masks(tokens, n int) [][]uint64 {
	words := (n + 63) / 64
	if cap(s.bits) < tokens*words {
		s.bits = make([]uint64, tokens*words*5/4)
	}
	s.masks = s.masks[:0]
	for i := range tokens {
		s.masks = append(s.masks, s.bits[:cap(s.bits)][i*words:][:words:words])
	}
	return s.masks
}
