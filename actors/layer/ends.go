package layer

import (
	"github.com/shoal-llm/shoal/actors/layer/inputs"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// Ends are a socket's weights before the first layer and after the last: embedding, norm and head.
type Ends struct {
	Embedding      checkpoint.Tensor // read from its file, one row per token
	EmbeddingScale float32           // factor for the embedding rows; 1: none
	FinalNorm      []float32         // (Hidden)
	Head           *tensor.Weight    // this rank's vocabulary rows of the output head; nil if it has none
	LogitScale     float32           // factor of the logits; 0 counts as 1
	LogitCap       float32           // Config.LogitCap
	PerLayer       *PerLayerInputs   // or nil
	Inputs         *inputs.Inputs    // values that an encoder adds to the embedding, or nil
}

// Bytes returns the memory of the weights, and Close frees it.
func (e *Ends) Bytes() int64 {
	n := int64(0)
	for _, m := range e.matrices() {
		n += m.Bytes()
	}
	return n
}

func (e *Ends) Close() {
	for _, m := range e.matrices() {
		m.Close()
	}
}

func (e *Ends) matrices() (all []*tensor.Weight) {
	if e.Head != nil {
		all = append(all, e.Head)
	}
	if p := e.PerLayer; p != nil && p.Project != nil {
		all = append(all, p.Project)
	}
	return all
}

// LookUp writes the scaled embedding of a token to x (Hidden). checked compares the file with its digests.
func (e *Ends) LookUp(x []float32, token uint32, checked bool) error {
	if !checked {
		e.Embedding.Row(x, int(token), 0, len(x))
	} else if err := e.Embedding.CheckedRow(x, int(token), 0, len(x)); err != nil {
		return err
	}
	if e.EmbeddingScale != 1 {
		tensor.Scale(x, e.EmbeddingScale)
	}
	return nil
}

func (b *Processor) Embed(ends Held, row int, tokens []uint32, checked bool) (err error) {
	e, h := ends.(*Ends), b.Dims.Hidden
	for i, t := range tokens {
		x := b.X[(row+i)*h:][:h]
		kind := 0
		if e.Inputs != nil {
			t, kind = e.Inputs.Split(t)
		}
		if err = e.LookUp(x, t, checked); err != nil {
			return err
		}
		if e.Inputs != nil { // a run is a whole text
			e.Inputs.Add(x, i, kind)
		}
	}
	if e.PerLayer != nil {
		return b.embedPerLayer(e.PerLayer, row, tokens, checked)
	}
	return nil
}

func (b *Processor) Hidden(ends Held, row int) []float32 {
	h := b.Dims.Hidden
	b.final = growF(b.final, h)
	b.Dims.norm(b.final[:h], b.X[row*h:(row+1)*h], ends.(*Ends).FinalNorm)
	return b.final[:h]
}

func (b *Processor) Logits(ends Held, rows []LogitRow) {
	e, h, vocab := ends.(*Ends), b.Dims.Hidden, b.Dims.Vocab
	if b.logits == nil {
		b.logits = make([]float32, LogitRows*vocab)
	}
	b.final = growF(b.final, len(rows)*h)
	for i := range rows {
		r := &rows[i]
		b.Dims.norm(b.final[i*h:(i+1)*h], b.X[r.Row*h:(r.Row+1)*h], e.FinalNorm)
		if r.Whole {
			r.Logits = b.logits[i*vocab : (i+1)*vocab]
		}
	}
	if e.Head == nil {
		return
	}
	mine := b.batch.Place.Slices[b.batch.Rank].Vocab
	b.Pool.MatMul(b.logits[mine.Lo:], vocab, e.Head, b.final, h, len(rows))
	parts := max(1, min(b.Pool.Threads()/max(1, len(rows)), mine.Len()/minTaskLogits))
	if need := len(rows) * parts; cap(b.bests) < need {
		b.bests = make([]int, need)
	}
	b.bests = b.bests[:len(rows)*parts]
	b.Pool.Run(len(b.bests), func(i int) {
		row, part := i/parts, i%parts
		lo, hi := mine.Len()*part/parts, mine.Len()*(part+1)/parts
		logits := b.logits[row*vocab+mine.Lo+lo : row*vocab+mine.Lo+hi]
		if e.LogitScale != 0 {
			tensor.Scale(logits, e.LogitScale)
		}
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
		if r.Logit = logits[r.Best]; r.Probability {
			r.Share = ProbabilityOf(logits, r.Best)
		}
	}
}

// minTaskLogits is the minimum number of logits per argmax task. The logits of a single row are divided
// among the threads as in the product, so that each reads logits from its own core's cache.
const minTaskLogits = 2048

// bestOf equals tensor.ArgMax of logits. of are the best indices of consecutive parts, in order.
func bestOf(logits []float32, of []int) int {
	best := of[0]
	for _, at := range of[1:] {
		if v, most := logits[at], logits[best]; v > most || most != most && v == v {
			best = at
		}
	}
	return best
}

// ProbabilityOf returns the softmax probability of the best token.
func ProbabilityOf(logits []float32, best int) float32 {
	sum := float32(0)
	for _, v := range logits {
		sum += f32.Exp(v - logits[best])
	}
	return 1 / sum
}
