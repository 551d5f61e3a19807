package launch

import "github.com/shoal-llm/shoal/internal/engine/cuda"

// Ahead is weights that a later product reads. Operations that leave multiprocessors and memory idle read them into
// the card's second-level cache.
type Ahead struct {
	Weights cuda.Pointer
	Bytes   int64
}

// aheadBlocks is about the thread blocks that read ahead: as many as a large card has multiprocessors, but a thread of
// theirs reads at least aheadReads times 32 bytes.
const aheadBlocks, aheadReads = 112, 2

// beside adds thread blocks that read ahead, and their arguments, to a call.
func (a Ahead) beside(c Call) Call {
	work := max(c.Grid.Y, 1)
	if c.Grid.Y = work; a.Bytes > 0 {
		c.Grid.Y += ceil(int(min(aheadBlocks, 1+a.Bytes/int64(32*aheadReads*c.Grid.Threads))), c.Grid.X)
	}
	c.Args = append(c.Args, a.Weights, uint64(a.Bytes), uint32(work))
	return c
}

// halves divides the weights between two operations.
func (a Ahead) halves() (first, second Ahead) {
	n := a.Bytes / 2 &^ 31
	return Ahead{a.Weights, n}, Ahead{a.Weights.Add(n), a.Bytes - n}
}
