package recurrent

import (
	"fmt"
	"slices"
	"strings"
)

// Block is the numbers that files give to the parts of a layer: attention or a mixer, and an FFN or
// experts. FFN is -1 in a layer without one.
type Block struct{ Mix, FFN int }

// The kinds of blocks in a pattern, as NVIDIA writes them.
const (
	MambaBlock     = 'M'
	AttentionBlock = '*'
	DenseBlock     = '-'
	ExpertBlock    = 'E'
)

// Blocks combines the blocks of a pattern to layers: an FFN belongs to the mixer before it. So a layer has
// the stages of other families, and sockets exchange as much as there.
func Blocks(pattern string) ([]Block, error) {
	var all []Block
	for i, kind := range []byte(pattern) {
		last := len(all) - 1
		switch {
		case kind == MambaBlock || kind == AttentionBlock:
			all = append(all, Block{Mix: i, FFN: -1})
		case kind != DenseBlock && kind != ExpertBlock:
			return nil, fmt.Errorf("block %d is %q; known: M (Mamba-2), * (attention), - (FFN), E (experts)", i, kind)
		case last < 0 || all[last].FFN >= 0:
			return nil, fmt.Errorf("block %d is %q; an FFN or experts that follow neither Mamba-2 nor attention are not implemented", i, kind)
		default:
			all[last].FFN = i
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no blocks")
	}
	return all, nil
}

// Pattern returns the letters of kinds of blocks by their names in transformers.
func Pattern(kinds []string) (string, error) {
	letters := map[string]byte{"mamba": MambaBlock, "linear_attention": MambaBlock, "attention": AttentionBlock,
		"full_attention": AttentionBlock, "mlp": DenseBlock, "moe": ExpertBlock}
	var s strings.Builder
	for i, kind := range kinds {
		letter, ok := letters[kind]
		if !ok {
			return "", fmt.Errorf("block %d is %.40q; known: mamba, linear_attention, attention, full_attention, mlp, moe", i, kind)
		}
		s.WriteByte(letter)
	}
	return s.String(), nil
}

// LayerOf returns the layer with the FFN of a block, or len(blocks) if there is none. Without blocks, a layer is
// a block.
func LayerOf(blocks []Block, block int) int {
	if blocks == nil {
		return block
	}
	if i := slices.IndexFunc(blocks, func(b Block) bool { return b.FFN == block }); i >= 0 {
		return i
	}
	return len(blocks)
}
