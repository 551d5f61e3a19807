package mixer

import (
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// decodeHead computes the decoded tokens of a run for one key head. The state stays that of the tokens
// that count; each token leaves a record.
func (b *Rows) decodeHead(t *task) {
	t.State.Settle(t.head, b.outAt(t.First, t.head*b.Group()))
	// A run of one token directly after the committed ones reads the state. Other runs need a copy of
	// the state, which they advance.
	single := t.N == 1 && t.Start == t.base
	var copies *[]float32
	if !single {
		copies = stateCopies.Get().(*[]float32)
		defer stateCopies.Put(copies)
		*copies = b.advanced(t, (*copies)[:0])
	}
	for i := range t.N {
		row := t.First + i
		if b.Kind == recurrent.ShortConv {
			b.multiply(t, i)
		}
		b.convolve(t, i)
		q, k, v := b.midAt(row, t.head)
		record := t.State.Record(t.head, t.Start+i)
		copy(record.Input, b.inputAt(t, i))
		copy(record.Key, k)
		for j := range b.Group() {
			h, v := t.head*b.Group()+j, b.value(v, j)
			if b.Kind == recurrent.ShortConv {
				b.finish(t, i, j, v)
				continue
			}
			decay, u, s := b.decayAt(row, h), record.Update(j), t.State.Matrix(t.head, j)
			if !single {
				s = (*copies)[j*len(s):][:len(s)]
			}
			record.Decay[j] = decay
			b.update(u, s, k, v, row, h, decay)
			if single {
				tensor.DeltaRead(b.outAt(row, h), s, k, q, u, decay)
			} else {
				tensor.DeltaAdvance(b.outAt(row, h), s, k, q, u, decay)
			}
			b.finish(t, i, j, v)
		}
	}
}

var stateCopies = sync.Pool{New: func() any { return new([]float32) }}

// advanced appends copies of the states of a key head after the last token before a run.
func (b *Rows) advanced(t *task, to []float32) []float32 {
	if b.Kind == recurrent.ShortConv {
		return to
	}
	out := b.outAt(t.First, t.head*b.Group())
	for v := range b.Group() {
		s := t.State.Matrix(t.head, v)
		to = append(to, s...)
		s = to[len(to)-len(s):]
		for pos := t.base; pos < t.Start; pos++ {
			record := t.State.Record(t.head, pos)
			tensor.DeltaAdvance(out, s, record.Key, record.Key, record.Update(v), record.Decay[v])
		}
	}
	return to
}
