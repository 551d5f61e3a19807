package step

import (
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// sweep is the execution of a plan.Sweep: passes of a fixed number of rows through some layers, and
// then the hand-over of these layers. Between layers each rank stores the rows of the residual stream
// that it owns (layered.Residual). Every layer's passes have the same rows, so a row stays on its rank.
type sweep struct {
	epoch *Epoch
	step  *Step
	*plan.Sweep
	seq  *caches.Sequence
	rows []float32 // packed, for a file
}

// sweeps returns the stages of a step's sweeps.
func (e *Epoch) sweeps(s *Step) (stages []stage) {
	for i := range s.Work.Sweeps {
		w := &sweep{epoch: e, step: s, Sweep: &s.Work.Sweeps[i]}
		w.seq = e.Seqs[w.Seq]
		batches := []*layer.Batch{s.buf.batch} // of the passes that run through the layers together
		if e.overlaps(s) {
			batches = e.parts(s)
		}
		for lo := 0; lo < len(w.Tokens); {
			var together, after []*pass
			for i := 0; i < len(batches) && lo < len(w.Tokens); i++ {
				hi := min(lo+w.seq.PassRows, len(w.Tokens))
				p, kept := w.pass(batches[i], lo, hi)
				if together = append(together, p); kept != nil {
					after = append(after, kept)
				}
				lo = hi
			}
			stages = append(stages, w.run(together)...)
			stages = append(stages, w.run(after)...)
		}
		stages = append(stages, stage{job: func(done func(error)) { w.commit(); done(nil) }})
		if w.Start+len(w.Tokens) == w.seq.Prompt {
			stages = append(stages, w.handOver()...)
		}
	}
	return stages
}

// pass is one batch of a sweep: some tokens of the prompt, and the layers that they pass.
type pass struct {
	batch    *layer.Batch
	run      plan.Run
	section  layer.Section
	dropped  int // first rows that skip the later layers
	at       int // position of the pass in the streams
	from, to *layered.Residual
	last     bool // of the prompt in the last layer
}

// pass returns the pass of tokens [lo, hi) of the sweep. kept is a second pass of some of them through SwiftKV's later
// layers, or nil.
func (w *sweep) pass(b *layer.Batch, lo, hi int) (p, kept *pass) {
	e := w.epoch
	run := plan.Run{Seq: w.Seq, Owner: w.seq.Owner, Start: w.Start + lo, Tokens: w.Tokens[lo:hi], Prefill: true}
	p = &pass{batch: b, run: run, at: run.Start, section: e.section(w.From, w.To), last: w.Sample && hi == len(w.Tokens)}
	if w.From > 0 {
		p.from = w.seq.Streams.All
	}
	if first := e.Geometry.Later; first > 0 && w.From >= first {
		return p, w.later(p)
	}
	p.to = w.stored(w.seq.Streams.All)
	return p, nil
}

// stored returns s, which stores the rows after the layers, or nil after the last layer.
func (w *sweep) stored(s *layered.Residual) *layered.Residual {
	if w.To == w.epoch.Geometry.Layers {
		return nil
	}
	return s
}

// run returns the stages of passes that run through the layers together.
func (w *sweep) run(passes []*pass) (stages []stage) {
	if len(passes) == 0 {
		return nil
	}
	var batches []*layer.Batch
	for i, p := range passes {
		stages = append(stages, w.begin(p)...)
		if batches = append(batches, p.batch); i > 0 {
			stages = append(stages, stage{job: func(done func(error)) { p.batch.Follow(passes[i-1].batch); done(nil) }})
		}
	}
	stages = append(stages, stage{batches: batches})
	if len(batches) > 1 {
		stages = append(stages, stage{job: func(done func(error)) { w.step.countWait(batches); done(nil) }})
	}
	for _, p := range passes {
		if p.to != nil {
			stages = append(stages, stage{job: func(done func(error)) { done(w.store(p)) }})
			continue
		}
		if p.last {
			n := len(p.run.Tokens)
			last := []wanted{{row: n - p.dropped - 1, seq: w.seq, position: p.run.Start + n, sample: true, token: plan.None}}
			stages = append(stages, w.epoch.heads(w.step, p.batch, last)...)
		}
		stages = append(stages, stage{job: func(done func(error)) { w.step.collect(p.batch); done(nil) }})
	}
	return stages
}

// begin returns the stages that fill the batch of a pass.
func (w *sweep) begin(p *pass) []stage {
	b := p.batch
	stages := []stage{{job: func(done func(error)) {
		began := time.Now()
		err := w.fill(p)
		w.step.spent.Begin += time.Since(began)
		if err != nil || p.from == nil || !b.SharesRows() {
			done(err)
			return
		}
		w.epoch.Await(b.Bulk(), w.epoch.Group, func() {
			sent := time.Now()
			b.ShareRows(w.epoch.Group, func(err error) {
				w.step.spent.Wait += time.Since(sent)
				done(err)
			})
		})
	}}}
	if p.from != nil {
		stages = append(stages, stage{job: func(done func(error)) {
			if b.SharesRows() {
				b.RowsArrived()
			}
			done(nil)
		}})
	}
	return stages
}

// fill sets the batch to a pass. Its rows are embeddings, or this rank's rows of a stream.
func (w *sweep) fill(p *pass) error {
	e, b, run := w.epoch, p.batch, &p.run
	b.Section = p.section
	rows := e.segment(run)
	rows.Dropped = p.dropped
	err := b.Reset(e.Place, e.Rank, []layer.Segment{rows}, e.rotations...)
	if err != nil {
		return err
	}
	if p.from == nil {
		if w.seq.Owner == e.Rank {
			for i, t := range run.Tokens {
				w.seq.AddToken(t, run.Start+i)
			}
		}
		return e.lookUp(w.step.buf, b, []plan.Run{*run})
	}
	mine, stored := b.PromptRows(), p.from
	if stored.InFile() {
		rows, err := stored.Load(p.at, mine.Len())
		if err == nil {
			b.Backend.Unpack(rows, owned(b))
		}
		return err
	}
	blocks, err := stored.Blocks(p.at, mine.Len())
	if err == nil {
		b.Backend.LoadRows(mine, blocks)
	}
	return err
}

// owned returns the tile of the residual stream of a pass that this rank stores.
func owned(b *layer.Batch) []layer.Tile {
	return []layer.Tile{{Of: layer.Residual, Rows: b.PromptRows(), Cols: topology.Range{Hi: b.Dims.Hidden}}}
}

// store stores this rank's rows of a pass for the next layers.
func (w *sweep) store(p *pass) error {
	b, stored := p.batch, p.to
	defer w.step.collect(b)
	if stored.InFile() {
		w.rows = b.Backend.Pack(w.rows[:0], owned(b))
		return stored.Store(p.at, w.rows)
	}
	mine := b.PromptRows()
	blocks, err := stored.Blocks(p.at, mine.Len())
	if err == nil {
		b.Backend.StoreRows(mine, blocks)
	}
	return err
}

// commit makes the rows of a sweep count. It reports a residual stream whose file has failed.
func (w *sweep) commit() {
	if w.seq.Streams.Lost() != nil {
		w.step.lost = append(w.step.lost, w.Seq)
	}
	if w.seq.PromptShard != nil {
		w.seq.PromptShard.Commit(len(w.Tokens))
	}
}

// handOver returns the stages that move the rows that the policy keeps to the owner, and free the
// rest.
func (w *sweep) handOver() []stage {
	e := w.epoch
	h := &handover{epoch: e, seqs: []*caches.Sequence{w.seq}}
	stages := h.joined(tensor.Span{Lo: w.From, Hi: w.To})
	end := w.To == e.Geometry.Layers
	if end {
		stages = append(stages, h.states()...)
	} else {
		stages = append(stages, stage{job: func(done func(error)) {
			w.seq.ReleaseLayers(topology.Range{Lo: w.From, Hi: w.To})
			done(nil)
		}})
	}
	stages = slices.Clip(h.timed(w.step, stages, end))
	if end && w.seq.Draft != nil {
		stages = append(stages, stage{job: func(done func(error)) { w.seq.Draft.Skip(); done(nil) }})
	}
	return stages
}
