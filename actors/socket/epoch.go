package socket

import (
	"math"
	"time"

	"shoal/actors/layer"
	"shoal/kvcache"
	"shoal/model"
	"shoal/proto"
	"shoal/tensor"
	"shoal/topology"
)

// epoch is everything a socket holds for one placement. It is built by the
// executor, used by a step of each micro-batch at a time, and torn down as a whole.
type epoch struct {
	*caches  // outlive the epoch
	place    topology.Placement
	rank     int
	config   model.Config
	weights  *Slices
	geometry kvcache.Geometry
	scale    float32 // of attention scores
	micro    [MicroBatches]*microBatch
	maxRows  int
	dt       tensor.DType // of the matrices
	group    *exchanges   // once it has joined
	ropes    []*ropeTable // the first is that of layers without a window
	pool     *tensor.Pool
	parse    func(spec string) (*kvcache.Policy, error)
}

// microBatch is what the steps of one use one after the other.
type microBatch struct {
	batch *layer.Batch
	head  head
	rows  replicas // of the tokens of a step; its buffers are used again
}

func newEpoch(ck *model.Checkpoint, p topology.Placement, rank int, w *Slices, dt, kv tensor.DType, held *caches, pool *tensor.Pool, maxRows int) *epoch {
	c := ck.Config
	var ropes []*ropeTable
	for _, inv := range c.Rotations() {
		ropes = append(ropes, &ropeTable{inv: inv, half: c.RopeDim() / 2, amplitude: float32(c.Rope.Amplitude)})
	}
	e := &epoch{
		caches: held, place: p, rank: rank, config: c, weights: w, pool: pool, maxRows: maxRows, dt: dt,
		geometry: GeometryOf(&c, kv), scale: c.AttentionScale(), ropes: ropes,
	}
	e.microBatch(0)
	return e
}

// microBatch is that of a number; the first time it takes the memory of its activations.
func (e *epoch) microBatch(batch int) *microBatch {
	if e.micro[batch] == nil {
		c := &e.config
		b := layer.NewBatch(layer.DimsOf(c), e.maxRows, e.geometry.Layout, e.pool)
		b.Type, b.MicroBatch = e.dt, uint8(batch)
		e.micro[batch] = &microBatch{batch: b, head: head{weights: e.weights, hidden: c.Hidden, vocab: c.Vocab, eps: c.NormEps, logitCap: c.LogitCap}}
	}
	return e.micro[batch]
}

// close frees the epoch, and the caches that no later one can use.
func (e *epoch) close(effects []Effect) {
	e.release(effects)
	e.weights.Close()
}

// step is one pass of the model over the rows of a plan. Nothing of a step lies
// outside it and its micro-batch.
type step struct {
	work    *Work
	micro   *microBatch
	wanted  []wanted
	results results
	stages  []stage
	sent    *layer.Batch // to the layers; the actor's, while the executor has the rest
	at      int
	reply   func(*proto.StepReply, error)

	spent      Stages
	observe    func(Stages)
	copied     uint64 // bytes sent to replicas
	wireBefore uint64
	lateBefore []time.Duration
	jobsBefore uint64
}

// stage is one piece of a step: a job for the executor that calls done once, or,
// without one, all layers in turn.
type stage struct {
	job func(done func(error))
}

// begin takes every block the step will need, and fills the batch. After it nothing in
// the step can fail for lack of memory.
func (e *epoch) begin(s *step) error {
	if err := e.do(s.work.First); err != nil {
		return err
	}
	s.micro = e.microBatch(s.work.Batch)
	segments := make([]layer.Segment, len(s.work.Runs))
	for i := range s.work.Runs {
		segments[i] = e.segment(&s.work.Runs[i])
	}
	fills := make([]func(int, []float32, []float32), 0, 2)
	for _, r := range e.ropes {
		fills = append(fills, r.fill)
	}
	if err := s.micro.batch.Reset(e.place, e.rank, segments, fills...); err != nil {
		return err
	}
	e.embed(s)
	return nil
}

// segment is a run of tokens as the layers see it.
func (e *epoch) segment(c *Run) layer.Segment {
	q := e.seqs[c.Seq]
	seg := layer.Segment{Seq: c.Seq, N: len(c.Tokens), Start: c.Start, Prefill: c.Prefill, Owner: c.Owner}
	switch {
	case c.Prefill && q.part != nil:
		seg.Cache = prefillView{Store: q.part, seen: q.seen, scale: e.scale}
	case !c.Prefill && q.owner == e.rank:
		seg.Cache = decodeView{q.own, e.geometry, e.scale, e.ropes[0].at}
	}
	return seg
}

// embed looks the tokens up, notes them in the owners' histories (those of decode rows
// when their tokens are drawn), and lists the rows whose logits are requested.
func (e *epoch) embed(s *step) {
	b, h := s.micro.batch, e.config.Hidden
	first := make(map[uint64]int, len(b.Segments))
	for _, seg := range b.Segments {
		first[seg.Seq] = seg.First
	}
	drawn := make([]bool, len(s.work.Runs))
	s.wanted = make([]wanted, 0, len(s.work.Wanted))
	for _, w := range s.work.Wanted {
		c := &s.work.Runs[w.Run]
		out := wanted{row: first[c.Seq] + w.Row, seq: e.seqs[c.Seq], position: w.Position, sample: w.Sample, score: w.Score, top: w.Top, token: none}
		if w.Sample && !c.Prefill {
			out.token, drawn[w.Run] = int32(c.Tokens[w.Row]), true
		}
		s.wanted = append(s.wanted, out)
	}
	for i := range s.work.Runs {
		c := &s.work.Runs[i]
		q := e.seqs[c.Seq]
		for j, t := range c.Tokens {
			row := first[c.Seq] + j
			x := b.X[row*h : (row+1)*h]
			e.weights.Embedding.Row(x, int(t), 0, h)
			if by := e.weights.EmbeddingScale; by != 1 {
				tensor.Scale(x, by)
			}
			switch {
			case q.owner != e.rank || drawn[i]:
			case c.Prefill:
				q.note(int32(t), c.Start+j)
			default:
				q.feed(int32(t))
			}
		}
	}
}

// ropeTable holds cos and sin by position, grown as positions are met. As in
// the reference implementation the angle is a float32 product.
type ropeTable struct {
	inv      []float64
	half     int
	cos, sin []float32 // (positions, half)

	amplitude float32 // multiplies what fill gives; 0 counts as 1
}

func (r *ropeTable) fill(pos int, cos, sin []float32) {
	for have := len(r.cos) / r.half; have <= pos; have++ {
		for _, f := range r.inv {
			angle := float64(float32(have) * float32(f))
			r.cos = append(r.cos, float32(math.Cos(angle)))
			r.sin = append(r.sin, float32(math.Sin(angle)))
		}
	}
	copy(cos, r.cos[pos*r.half:(pos+1)*r.half])
	copy(sin, r.sin[pos*r.half:(pos+1)*r.half])
	if r.amplitude != 0 && r.amplitude != 1 {
		for i := range cos {
			cos[i], sin[i] = cos[i]*r.amplitude, sin[i]*r.amplitude
		}
	}
}

// at is the row of a position at or before one that was filled: what a step
// turns keys by while its layers run, on many workers at once.
func (r *ropeTable) at(pos int) (cos, sin []float32) {
	return r.cos[pos*r.half : (pos+1)*r.half], r.sin[pos*r.half : (pos+1)*r.half]
}
