// Package window stores the tokens of a sliding window in a ring of whole blocks. Block b of the text is
// in block b mod Blocks, so a window starts and ends in the same blocks as in prefill.
package window

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Slots returns the number of slots of a ring: whole blocks around any window, one more than it fills.
func Slots(window int) int { return Blocks(window) * tensor.BlockSlots }

// Blocks returns the number of blocks of a ring.
func Blocks(window int) int { return (window+tensor.BlockSlots-2)/tensor.BlockSlots + 1 }

// Oldest returns the first position in the window of position pos, or in its chunk of that size.
func Oldest(window, pos int, chunks bool) int {
	if chunks {
		return pos - pos%window
	}
	return max(0, pos-window+1)
}

// View returns the blocks that hold positions oldest to newest, in the order of their
// positions, the number of their slots, and the slots of the window. The list starts at a run of
// the text (tensor.RunBlocks), with nil for the blocks before the window, so that runs are those of
// prefill. It fills order and mask.
func View(ring int, blocks, order [][]byte, oldest, newest int, mask []uint64) ([][]byte, int, []uint64) {
	const size = tensor.BlockSlots
	begin, first := oldest/tensor.RunSlots*tensor.RunBlocks, oldest/size
	order, mask = order[:0], mask[:newest/size+1-begin]
	for b := begin; b <= newest/size; b++ {
		if mask[b-begin] = 0; b < first {
			order = append(order, nil)
			continue
		}
		mask[b-begin] = ^uint64(0)
		order = append(order, blocks[b%(ring/size)])
	}
	mask[first-begin] <<= oldest % size
	return order, newest + 1 - begin*size, mask
}
