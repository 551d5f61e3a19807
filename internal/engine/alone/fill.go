package alone

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Fill creates sequences as if prompts with random keys and values had been read under a policy
// ("": full). Each prompt has the given number of tokens. So long contexts can be measured without
// reading them. A policy that is calibrated by queries gets those of a short random prompt. read is
// the fraction of the first sequence's slots that these queries read, one query at a time, under a
// policy that selects slots; otherwise 0. Several sockets own the sequences in turn.
func (a *Socket) Fill(ctx context.Context, seqs []uint64, tokens int, policy string) (read float64, err error) {
	p, err := kvpolicy.Parse(policy)
	if err != nil {
		return 0, err
	}
	p = p.For(tokens)
	if p.Needs.Queries {
		if len(a.ranks) > 1 {
			return 0, fmt.Errorf("alone: %s needs all queries for calibration, and several sockets divide them", p.Spec())
		}
		random := Prompt{Seq: calibrationSeq, Policy: watching(p.Needs).Spec(),
			Tokens: make([]uint32, min(p.Needs.Window, tokens)), Chunk: 1, Open: true}
		for i := range random.Tokens {
			random.Tokens[i] = uint32(7 + 31*i%1009)
		}
		if _, _, _, err := a.Prefill(ctx, random); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, a.Release(ctx, []uint64{calibrationSeq})) }()
	}
	of := make([][]uint64, len(a.ranks))
	for i, id := range seqs {
		owner := i % len(of)
		of[owner] = append(of[owner], id)
	}
	prompt := make([]uint32, max(tokens, 0))
	for owner, ids := range of {
		made, some, err := a.fillOn(ctx, owner, ids, tokens, p)
		for _, id := range ids[:made] {
			a.resume(id, owner, p, prompt, 0)
		}
		if err != nil {
			return 0, err
		}
		if owner == 0 {
			read = some
		}
	}
	return read, nil
}

// fillOn creates the sequences that one socket owns, and returns their number.
func (a *Socket) fillOn(ctx context.Context, owner int, seqs []uint64, tokens int, p *kvcache.Policy) (made int, read float64, err error) {
	err = a.between(ctx, owner, func(c *step.Job) error {
		if most := c.Config().MaxPositions; tokens < 1 || tokens >= most {
			return fmt.Errorf("alone: fill of %d tokens: want 1 to %d", tokens, most-1)
		}
		if err := c.Geometry().Fits(p); err != nil {
			return err
		}
		templates := noiseBlocks(c.Geometry().Layout)
		var part *kvcache.Store
		var queries *kvcache.Observation
		if p.Needs.Queries {
			var err error
			if part, queries, err = c.Prompt(calibrationSeq); err != nil {
				return err
			}
		}
		for _, id := range seqs {
			own, err := fill(c, templates, tokens, p, queries)
			if err != nil {
				return fmt.Errorf("alone: sequence %d: %w", id, err)
			}
			if queries != nil && made == 0 {
				read = readBy(c, own, part, queries)
			}
			if err := c.Spill(own); err != nil {
				own.Release()
				return fmt.Errorf("alone: sequence %d: %w", id, err)
			}
			c.Keep(id, own, a.Adapters[id])
			made++
		}
		return nil
	})
	return made, read, err
}

// calibrationSeq is the sequence whose queries calibrate others.
const calibrationSeq = 1 << 63

// readBy returns the fraction of a cache's slots that the queries read, on average.
func readBy(c *step.Job, own, part *kvcache.Store, queries *kvcache.Observation) float64 {
	g, score := own.Geometry(), c.Config().Score()
	read := make([]int, g.Layers*g.KVHeads)
	seen := 0
	c.Pool().Run(len(read), func(i int) {
		scratch := new(tensor.AttnScratch)
		q := queries.Statistics(part, i/g.KVHeads, i%g.KVHeads, score).Queries
		width := g.Group * g.Layout.KDim
		for at := 0; at < len(q); at += width {
			_, n, mask := own.View(i/g.KVHeads, i%g.KVHeads, own.Tokens()-1, q[at:at+width], score, nil, scratch)
			if mask == nil {
				read[i] += n
			}
			for _, word := range mask {
				read[i] += bits.OnesCount64(word)
			}
		}
		if i == 0 {
			seen = len(q) / width
		}
	})
	sum := 0
	for _, n := range read {
		sum += n
	}
	return float64(sum) / float64(seen*own.Tokens()*len(read))
}

func fill(c *step.Job, templates [][]byte, tokens int, p *kvcache.Policy, queries *kvcache.Observation) (*kvcache.Store, error) {
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
			c.Arena().WriteBlock(b, templates[(37*j+7*layer+head)%len(templates)])
		}
		prompt.Write(layer, head, tokens-1, k, k[:g.Layout.VDim])
	})
	for layer := range g.Recurrent.Layers {
		for head := range g.KVHeads {
			prompt.State(layer, head).Advanced(tokens)
		}
	}
	prompt.Commit(tokens)
	seen, err := kvcache.NewObservation(c.Arena(), g, tensor.Span{Hi: g.Cut()}, p.Needs, tokens)
	if err != nil {
		return nil, err
	}
	defer seen.Release()
	if queries != nil {
		seen.CopyQueries(queries)
	}
	return c.Compress(prompt, seen, p)
}

// noiseBlocks are cache blocks of random keys and values, all different.
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
