package layer

import (
	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/tensor"
)

// Ends are a socket's weights ahead of the first layer and behind the last.
type Ends struct {
	Embedding      model.Tensor   // read through the mapped file, a row a token
	EmbeddingScale float32        // of those rows; 1: as stored
	FinalNorm      []float32      // (Hidden)
	Head           *tensor.Weight // vocabulary rows of the output head; nil when empty
	LogitCap       float32        // Config.LogitCap
}

func (b *Processor) Embed(e *Ends, row int, tokens []uint32) {
	h := b.Dims.Hidden
	for i, t := range tokens {
		x := b.X[(row+i)*h:][:h]
		e.Embedding.Row(x, int(t), 0, h)
		if e.EmbeddingScale != 1 {
			tensor.Scale(x, e.EmbeddingScale)
		}
	}
}

// LogitRow is a row of a step whose logits are requested.
type LogitRow struct {
	Row  int
	Best bool // only the largest matters
}

func (b *Processor) Logits(e *Ends, rows []LogitRow, out []float32, vocab int, bests []int, odds []float32) {
	h := b.Dims.Hidden
	b.final = growF(b.final, len(rows)*h)
	for i, r := range rows {
		tensor.RMSNorm(b.final[i*h:(i+1)*h], b.X[r.Row*h:(r.Row+1)*h], e.FinalNorm, b.Dims.NormEps)
	}
	if e.Head == nil {
		return
	}
	mine := b.Place.Slices[b.Rank].Vocab
	b.Pool.MatMul(out[mine.Lo:], vocab, e.Head, b.final, h, len(rows))
	b.Pool.Run(len(rows), func(i int) {
		part := out[i*vocab+mine.Lo : i*vocab+mine.Hi]
		if e.LogitCap > 0 {
			tensor.SoftCap(part, e.LogitCap)
		}
		if rows[i].Best {
			bests[i] = tensor.ArgMax(part)
			if odds != nil {
				odds[i] = oddsOf(part, bests[i])
			}
		}
	})
}

// oddsOf is the softmax of the best of logits.
func oddsOf(logits []float32, best int) float32 {
	sum := float32(0)
	for _, v := range logits {
		sum += tensor.Exp(v - logits[best])
	}
	return 1 / sum
}
