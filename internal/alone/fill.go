package alone

import (
	"context"
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/kvcache"
	"github.com/shoal-llm/shoal/tensor"
)

// Fill makes sequences as if prompts of tokens tokens, with random keys and values,
// had been read under a policy ("": full): long contexts can be measured without
// reading them first.
func (a *Socket) Fill(ctx context.Context, seqs []uint64, tokens int, policy string) error {
	p, err := kvcache.Parse(policy)
	if err != nil {
		return err
	}
	made := 0
	err = a.between(ctx, func(c *socket.Caches) error {
		if most := c.Config().MaxPositions; tokens < 1 || tokens >= most {
			return fmt.Errorf("alone: fill of %d tokens: want 1 to %d", tokens, most-1)
		}
		if err := c.Geometry().Fits(p); err != nil {
			return err
		}
		templates := noiseBlocks(c.Geometry().Layout)
		for _, id := range seqs {
			own, err := fill(c, templates, tokens, p)
			if err != nil {
				return fmt.Errorf("alone: sequence %d: %w", id, err)
			}
			if err := c.Spill(own); err != nil {
				own.Release()
				return fmt.Errorf("alone: sequence %d: %w", id, err)
			}
			c.Keep(id, own)
			made++
		}
		return nil
	})
	read := make([]uint32, max(tokens, 0))
	for _, id := range seqs[:made] {
		a.resume(id, p, read, 0)
	}
	return err
}

func fill(c *socket.Caches, templates [][]byte, tokens int, p *kvcache.Policy) (*kvcache.Store, error) {
	g := c.Geometry()
	heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
	prompt := kvcache.NewPrefill(c.Arena(), g, heads)
	defer prompt.Release()
	if err := prompt.Reserve(tokens); err != nil {
		return nil, err
	}
	k := make([]float32, g.Layout.KDim)
	c.Pool().Run(g.Layers*g.KVHeads, func(i int) {
		layer, head := i/g.KVHeads, i%g.KVHeads
		for j, b := range prompt.Blocks(layer, head) {
			copy(b, templates[(37*j+7*layer+head)%len(templates)])
		}
		prompt.Write(layer, head, tokens-1, k, k[:g.Layout.VDim])
	})
	prompt.Commit(tokens)
	seen, err := kvcache.NewObservation(c.Arena(), g, heads, p.Needs, tokens)
	if err != nil {
		return nil, err
	}
	defer seen.Release()
	return c.Compress(prompt, seen, p)
}

// noiseBlocks are cache blocks of random keys and values, each with others.
func noiseBlocks(l tensor.KVLayout) [][]byte {
	blocks := make([][]byte, 64)
	row := make([]float32, l.KDim+l.VDim)
	state := uint64(1)
	for b := range blocks {
		blocks[b] = make([]byte, l.BlockBytes())
		for slot := range tensor.BlockSlots {
			for i := range row {
				state = state*6364136223846793005 + 1442695040888963407
				row[i] = float32(state>>40)/(1<<23) - 1
			}
			l.Put(blocks[b], slot, row[:l.KDim], row[l.KDim:])
		}
	}
	return blocks
}
