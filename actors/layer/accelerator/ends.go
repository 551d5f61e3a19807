package accelerator

import (
	"encoding/binary"
	"math"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// ends holds the weights before the first layer and after the last. Its Ends have no matrix.
type ends struct {
	allocations
	layer.Ends
	finalNorm cuda.Pointer
	head      launch.Weight
}

// Bytes and Close implement layer.Held.
func (e *ends) Bytes() int64 { return e.allocations.Bytes() }
func (e *ends) Close()       { e.allocations.Close() }

// Embed implements layer.Backend. The rows of the embedding are read from its file on the host, those of a
// prompt by several goroutines, because the card waits for them.
func (b *Backend) Embed(held layer.Held, row int, tokens []uint32, checked bool) error {
	e, h := held.(*ends), b.dims.Hidden
	b.frame.embeds = true
	embed := func(lo, hi int) error {
		for i := lo; i < hi; i++ {
			if err := e.LookUp(b.frame.embedded[(row+i)*h:][:h], tokens[i], checked); err != nil {
				return err
			}
		}
		return nil
	}
	parts := min(runtime.GOMAXPROCS(0), len(tokens)/minLookups)
	if parts < 2 {
		return embed(0, len(tokens))
	}
	var g errgroup.Group
	for i := range parts {
		g.Go(func() error { return embed(i*len(tokens)/parts, (i+1)*len(tokens)/parts) })
	}
	return g.Wait()
}

// minLookups is the minimum number of tokens that a goroutine looks up.
const minLookups = 32

// finals computes the final norms of rows in their order.
func (b *Backend) finals(e *ends, rows []layer.LogitRow) {
	for i := 0; i < len(rows); {
		n := i + 1
		for n < len(rows) && rows[n].Row == rows[n-1].Row+1 {
			n++
		}
		rounds := kernel.Quantized(e.head.Type)
		b.norm(e.finalNorm, b.x.Add(4*int64(rows[i].Row*b.dims.Hidden)), n-i, b.input(b.norms, i), !rounds, rounds)
		i = n
	}
}

// Logits implements layer.Backend.
func (b *Backend) Logits(held layer.Held, rows []layer.LogitRow) {
	e, vocab, n, mine := held.(*ends), b.dims.Vocab, len(rows), b.batch.Place.Slices[b.batch.Rank].Vocab
	if n == 0 {
		return
	}
	if mine.Len() == 0 { // the others compute all logits
		for i := range rows {
			if rows[i].Whole {
				rows[i].Logits = cuda.Floats(b.wholeRow(i))
			}
		}
		return
	}
	b.start()
	b.finals(e, rows)
	b.do(launch.Product{W: e.head, X: b.norms.plain, Rounded: b.norms.rounded, N: n, Y: b.logits, LdY: vocab})
	scale := e.LogitScale
	if scale == 0 {
		scale = 1
	}
	b.do(launch.Logits{X: b.logits, Ld: vocab, Scale: scale, Cap: e.LogitCap, Rows: n, Cols: mine.Len()})
	b.do(launch.Best{X: b.logits, Ld: vocab, Index: b.bests, Value: b.bests.Add(4 * layer.LogitRows), Scratch: b.parts, Rows: n,
		Cols: mine.Len()})
	b.ops.Start()
	best := b.results.Bytes()[:8*layer.LogitRows]
	b.card.Must(b.card.Stream.Download(best, b.bests))
	whole := 0
	for i := range rows {
		if rows[i].Whole || rows[i].Probability {
			b.card.Must(b.card.Stream.Download(b.wholeRow(whole)[4*mine.Lo:4*mine.Hi], b.logits.Add(4*int64(i*vocab))))
			whole++
		}
	}
	b.wait()
	whole = 0
	for i := range rows {
		r := &rows[i]
		if !r.Whole {
			r.Best = int(binary.LittleEndian.Uint32(best[4*i:]))
			r.Logit = math.Float32frombits(binary.LittleEndian.Uint32(best[4*(layer.LogitRows+i):]))
		}
		if r.Whole || r.Probability {
			logits := cuda.Floats(b.wholeRow(whole))
			if whole++; r.Whole {
				r.Logits = logits
			} else {
				r.Share = layer.ProbabilityOf(logits[mine.Lo:mine.Hi], r.Best)
			}
		}
	}
}

// wholeRow returns the pinned memory of the i-th whole row of logits. It grows by rows, so rows that were
// returned before stay valid until the next call of Logits.
func (b *Backend) wholeRow(i int) []byte {
	for len(b.whole) <= i {
		p, err := b.card.Pin(4 * b.dims.Vocab)
		b.card.Must(err)
		b.whole = append(b.whole, p)
	}
	return b.whole[i].Bytes()
}

// Hidden implements layer.Backend.
func (b *Backend) Hidden(held layer.Held, row int) []float32 {
	b.start()
	b.norm(held.(*ends).finalNorm, b.x.Add(4*int64(row*b.dims.Hidden)), 1, b.norms, true, false)
	return b.row(b.norms.plain)
}

// row downloads a row of the width of the residual stream. It is valid until the next call.
func (b *Backend) row(p cuda.Pointer) []float32 {
	b.ops.Start()
	out := b.results.Bytes()[8*layer.LogitRows:][:4*b.dims.Hidden]
	b.card.Must(b.card.Stream.Download(out, p))
	b.wait()
	return cuda.Floats(out)
}

// Keep implements layer.Backend.
func (b *Backend) Keep(to layer.States, held layer.Held, rows []int) {
	s := to.(*layer.HostStates)
	for _, r := range rows {
		if held != nil {
			s.Rows = append(s.Rows, b.Hidden(held, r)...)
			continue
		}
		b.start()
		s.Rows = append(s.Rows, b.row(b.x.Add(4*int64(r*b.dims.Hidden)))...)
	}
}

// Join implements layer.Backend. It panics, because a card does not compute multi-token prediction.
// Device.MTP returns an error for its weights.
func (b *Backend) Join(layer.Held, []layer.StateRun) {
	panic("accelerator: multi-token prediction is not computed on a card")
}
