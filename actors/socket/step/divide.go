package step

import (
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Micro-batches: the rows of a pass go through the layers in two parts, so that one part computes while
// the other waits for an exchange (docs/decisions/passes.md). Everything before and after the
// layers works on the whole batch.

// part is one micro-batch of a pass.
type part struct {
	batch *layer.Batch
	runs  []plan.Run
}

// divide divides the rows of a pass, unless the plan has one micro-batch or there is nothing to
// overlap. All ranks divide at the same place.
func (e *Epoch) divide(s *Step) error {
	s.parts = nil
	if !e.overlaps(s) {
		return nil
	}
	cut := cutRuns(s.Work.Runs)
	if len(cut[0]) == 0 || len(cut[1]) == 0 {
		return nil
	}
	batches := e.parts(s)
	for i, pieces := range cut {
		p := part{batch: batches[i]}
		segments := make([]layer.Segment, 0, len(pieces))
		for _, c := range pieces {
			run := s.Work.Runs[c.run]
			run.Start, run.Tokens = run.Start+c.lo, run.Tokens[c.lo:c.hi]
			seg := e.segment(&run)
			seg.Dropped = min(max(0, e.droppedRows(s.Work, c.run)-c.lo), c.hi-c.lo)
			segments, p.runs = append(segments, seg), append(p.runs, run)
		}
		p.batch.Section = layer.Section{}
		if err := p.batch.Reset(e.Place, e.Rank, segments, e.rotations...); err != nil {
			return err
		}
		s.parts = append(s.parts, p)
	}
	if first, second := cut[0][len(cut[0])-1], cut[1]; slices.ContainsFunc(second, func(c piece) bool { return c.run == first.run }) {
		s.parts[1].batch.Follow(s.parts[0].batch) // a prompt is in both
	}
	return nil
}

// overlaps reports whether a step runs micro-batches through the layers. A text without causal attention
// is not divided.
func (e *Epoch) overlaps(s *Step) bool {
	return s.Work.MicroBatches > 1 && len(e.Place.Slices) > 1 && !e.config.NonCausal
}

// spare reports whether a step needs a processor for messages besides those of the compute threads. Goroutines
// send and receive the messages of prompts. In a divided step they do that while all threads compute.
func spare(w *machine.Work) bool {
	return w.MicroBatches > 1 && len(w.Chunks)+len(w.Sweeps) > 0
}

// parts returns the batches of a step's micro-batches. The first call allocates their activations.
func (e *Epoch) parts(s *Step) []*layer.Batch {
	for i := len(s.buf.parts); i < plan.MaxMicroBatches; i++ {
		s.buf.parts = append(s.buf.parts, e.newBatch(1+i))
	}
	return s.buf.parts
}

// piece is tokens [lo, hi) of a run.
type piece struct{ run, lo, hi int }

// cutRuns divides the rows of a step into two halves. Each half has half of every owner's decode rows,
// because an owner attends for all heads of its sequences. A decode run stays whole. Prompts are divided in
// order, at any token, so that both halves have equally many rows.
func cutRuns(runs []plan.Run) (cut [2][]piece) {
	var rows [2]int
	owned := map[int]int{} // rows of the first half minus rows of the second, by owner
	all := 0
	for i := range runs {
		r, half := &runs[i], 0
		n := len(r.Tokens)
		if all += n; r.Prefill {
			continue
		}
		if d := owned[r.Owner]; d > 0 || d == 0 && rows[0] > rows[1] {
			half = 1
		}
		owned[r.Owner] += n * (1 - 2*half)
		rows[half] += n
		cut[half] = append(cut[half], piece{i, 0, n})
	}
	left := max(0, (all+1)/2-rows[0]) // prompt rows that the first half still takes
	for i := range runs {
		if !runs[i].Prefill {
			continue
		}
		n := len(runs[i].Tokens)
		first := min(n, left)
		left -= first
		if first > 0 {
			cut[0] = append(cut[0], piece{i, 0, first})
		}
		if first < n {
			cut[1] = append(cut[1], piece{i, first, n})
		}
	}
	return cut
}

// layers returns the stages that run the rows of a pass through all layers.
func (e *Epoch) layers(s *Step) []stage {
	if s.parts == nil {
		return []stage{{batches: []*layer.Batch{s.buf.batch}}}
	}
	batches := e.parts(s)
	return []stage{{batches: batches}, {job: func(done func(error)) {
		s.countWait(batches)
		s.buf.batch.Join(batches...)
		done(nil)
	}}}
}

// countWait sets the waiting time of batches that went through the layers together: the time since they
// entered, without computation.
func (s *Step) countWait(batches []*layer.Batch) {
	idle := time.Since(s.entered)
	for _, b := range batches {
		s.overlapped += b.Wait
		idle -= b.Compute
		b.Wait = 0
	}
	batches[0].Wait = max(0, idle)
	s.exposed += batches[0].Wait
}
