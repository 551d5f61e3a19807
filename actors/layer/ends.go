package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Ends are a socket's weights ahead of the first layer and behind the last.
type Ends struct {
	Embedding      model.Tensor   // read from its file, a row a token
	EmbeddingScale float32        // of those rows; 1: as stored
	FinalNorm      []float32      // (Hidden)
	Head           *tensor.Weight // vocabulary rows of the output head; nil when empty
	LogitCap       float32        // Config.LogitCap
}

// Bytes is the memory of the weights, Close frees it.
func (e *Ends) Bytes() int64 {
	if e.Head == nil {
		return 0
	}
	return e.Head.Bytes()
}

func (e *Ends) Close() {
	if e.Head != nil {
		e.Head.Close()
	}
}

func (b *Processor) Embed(ends Held, row int, tokens []uint32, checked bool) (err error) {
	e, h := ends.(*Ends), b.Dims.Hidden
	for i, t := range tokens {
		x := b.X[(row+i)*h:][:h]
		if !checked {
			e.Embedding.Row(x, int(t), 0, h)
		} else if err = e.Embedding.CheckedRow(x, int(t), 0, h); err != nil {
			return err
		}
		if e.EmbeddingScale != 1 {
			tensor.Scale(x, e.EmbeddingScale)
		}
	}
	return nil
}

func (b *Processor) Logits(ends Held, rows []LogitRow) {
	e, h, vocab := ends.(*Ends), b.Dims.Hidden, b.Dims.Vocab
	if b.logits == nil {
		b.logits = make([]float32, LogitRows*vocab)
	}
	b.final = growF(b.final, len(rows)*h)
	for i := range rows {
		r := &rows[i]
		tensor.RMSNorm(b.final[i*h:(i+1)*h], b.X[r.Row*h:(r.Row+1)*h], e.FinalNorm, b.Dims.NormEps)
		if r.Whole {
			r.Logits = b.logits[i*vocab : (i+1)*vocab]
		}
	}
	if e.Head == nil {
		return
	}
	mine := b.batch.Place.Slices[b.batch.Rank].Vocab
	b.Pool.MatMul(b.logits[mine.Lo:], vocab, e.Head, b.final, h, len(rows))
	parts := max(1, min(b.Pool.Threads()/max(1, len(rows)), mine.Len()/leastLogits))
	if need := len(rows) * parts; cap(b.bests) < need {
		b.bests = make([]int, need)
	}
	b.bests = b.bests[:len(rows)*parts]
	b.Pool.Run(len(b.bests), func(i int) {
		row, part := i/parts, i%parts
		lo, hi := mine.Len()*part/parts, mine.Len()*(part+1)/parts
		logits := b.logits[row*vocab+mine.Lo+lo : row*vocab+mine.Lo+hi]
		if e.LogitCap > 0 {
			tensor.SoftCap(logits, e.LogitCap)
		}
		if !rows[row].Whole {
			b.bests[i] = lo + tensor.ArgMax(logits)
		}
	})
	for i := range rows {
		r := &rows[i]
		if r.Whole {
			continue
		}
		logits := b.logits[i*vocab+mine.Lo : i*vocab+mine.Hi]
		r.Best = bestOf(logits, b.bests[i*parts:(i+1)*parts])
		if r.Logit = logits[r.Best]; r.Odds {
			r.Share = oddsOf(logits, r.Best)
		}
	}
}

// leastLogits are those that a thread should have: of one row they are read, where the threads
// have left them, by as many.
const leastLogits = 2048

// bestOf is tensor.ArgMax of logits of whose parts it is known, in their order.
func bestOf(logits []float32, of []int) int {
	best := of[0]
	for _, at := range of[1:] {
		if v, most := logits[at], logits[best]; v > most || most != most && v == v {
			best = at
		}
	}
	return best
}

// oddsOf is the softmax of the best of logits.
func oddsOf(logits []float32, best int) float32 {
	sum := float32(0)
	for _, v := range logits {
		sum += tensor.Exp(v - logits[best])
	}
	return 1 / sum
}
