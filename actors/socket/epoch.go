package socket

import (
	"fmt"
	"math"
	"time"

	"shoal/actors/layer"
	"shoal/collective"
	"shoal/kvcache"
	"shoal/model"
	"shoal/proto"
	"shoal/tensor"
	"shoal/topology"
)

// epoch is everything a socket holds for one placement. It is built by the
// executor, used by one step at a time, and torn down as a whole.
type epoch struct {
	place    topology.Placement
	rank     int
	config   model.Config
	weights  *Slices
	geometry kvcache.Geometry
	scale    float32 // of attention scores
	arena    *kvcache.Arena
	batch    *layer.Batch
	head     head
	group    *collective.Group
	ropes    []*ropeTable // the first is that of layers without a window
	seqs     map[uint64]*sequence
	carry    *carry   // outlives the epoch
	rows     replicas // of the tokens of a step; its buffers are used again
	copied   uint64   // bytes sent to replicas in the step
	pool     *tensor.Pool
	parse    func(spec string) (*kvcache.Policy, error)
}

func newEpoch(ck *model.Checkpoint, p topology.Placement, rank int, w *Slices, dt, kv tensor.DType, arena *kvcache.Arena, pool *tensor.Pool, maxRows int) *epoch {
	c := ck.Config
	geometry := GeometryOf(&c, kv)
	var ropes []*ropeTable
	for _, inv := range c.Rotations() {
		ropes = append(ropes, &ropeTable{inv: inv, half: c.RopeDim() / 2, amplitude: float32(c.Rope.Amplitude)})
	}
	e := &epoch{
		place: p, rank: rank, config: c, weights: w, arena: arena, pool: pool,
		geometry: geometry, scale: c.AttentionScale(),
		batch: layer.NewBatch(layer.DimsOf(&c), maxRows, geometry.Layout, pool),
		head:  head{weights: w, hidden: c.Hidden, vocab: c.Vocab, eps: c.NormEps, logitCap: c.LogitCap},
		ropes: ropes,
		seqs:  map[uint64]*sequence{},
	}
	e.batch.Type = dt
	return e
}

// close frees the epoch; with keep, caches of sequences that decode go to the next.
func (e *epoch) close(keep bool) {
	if e.group != nil {
		e.group.Close()
	}
	for _, s := range e.seqs {
		if keep {
			e.carry.keep(s)
			continue
		}
		s.release()
	}
	e.seqs = nil
	e.weights.Close()
}

// step is one pass of the model over the rows of a StepRequest.
type step struct {
	request  *proto.StepRequest
	wanted   []wanted
	handover []*sequence // sequences whose last prompt chunk this is
	copies   *replicas   // whole caches that are copied first
	results  results
	legs     []leg
	at       int
	reply    func(*proto.StepReply, error)

	stages     Stages
	observe    func(Stages)
	wireBefore uint64
	lateBefore []time.Duration
	jobsBefore uint64
}

// leg is one piece of a step: a job for the executor that calls done once, or,
// without one, all layers in turn.
type leg struct {
	job func(done func(error))
}

// begin validates the request against what this socket knows, takes every
// block the step will need, and fills the batch. After it nothing in the step
// can fail for lack of memory.
func (e *epoch) begin(s *step) error {
	e.settle()
	e.copied = 0
	e.release(s.request.Release)
	e.uncopy(s.request.Uncopy)
	for _, o := range s.request.Open {
		if err := e.checkOpen(o); err != nil {
			return err
		}
		if len(o.Resume) > 0 {
			q, err := e.resume(o)
			if err != nil {
				return err
			}
			e.seqs[o.Seq] = q
			continue
		}
		q, err := e.open(o)
		if err != nil {
			return err
		}
		e.seqs[o.Seq] = q
	}
	copies, err := e.openCopies(s.request)
	if err != nil {
		return err
	}
	s.copies = copies
	var segments []layer.Segment
	for _, c := range s.request.Chunks {
		seg, err := e.prepare(s, c)
		if err != nil {
			return err
		}
		segments = append(segments, seg)
	}
	if len(segments) == 0 {
		return fmt.Errorf("socket: step %d has no rows", s.request.Step)
	}
	fills := make([]func(int, []float32, []float32), 0, 2)
	for _, r := range e.ropes {
		fills = append(fills, r.fill)
	}
	if err := e.batch.Reset(e.place, e.rank, segments, fills...); err != nil {
		return err
	}
	e.embed(s)
	return checkScores(s)
}

// release drops the caches of sequences; unknown ones are none of its business.
func (e *epoch) release(ids []uint64) {
	for _, id := range ids {
		if q := e.seqs[id]; q != nil {
			q.release()
			delete(e.seqs, id)
		}
		e.carry.release(id)
	}
}

// prepare reserves the cache of one chunk.
func (e *epoch) prepare(s *step, c *proto.Chunk) (layer.Segment, error) {
	var none layer.Segment
	if err := e.checkChunk(s.request, c); err != nil {
		return none, err
	}
	q, n, start := e.seqs[c.Seq], len(c.Tokens), int(c.Start)
	q.step = s.request.Step
	seg := layer.Segment{Seq: c.Seq, N: n, Start: start, Prefill: c.Prefill, Owner: q.owner}
	if c.Prefill && q.part != nil {
		if err := q.part.Reserve(start + n); err != nil {
			return none, fmt.Errorf("socket: sequence %d: %w", c.Seq, err)
		}
		seg.Cache = prefillView{Store: q.part, seen: q.seen, scale: e.scale}
	}
	if c.Last {
		q.handed = true
		if q.owner == e.rank {
			q.own = kvcache.NewStore(e.arena, e.geometry, q.policy)
			heads := noHeads
			if q.part != nil && q.policy.KeepsAll() {
				heads = e.promptHeads(q.owner)
			}
			if err := q.own.Open(q.prompt, q.prompt, heads); err != nil {
				return none, fmt.Errorf("socket: sequence %d: %w", c.Seq, err)
			}
		}
		s.handover = append(s.handover, q)
	}
	if !c.Prefill && q.owner == e.rank {
		if err := q.own.Reserve(start + n); err != nil {
			return none, fmt.Errorf("socket: sequence %d: %w", c.Seq, err)
		}
		seg.Cache = decodeView{q.own, e.geometry, e.scale, e.ropes[0].at}
	}
	if !c.Prefill && q.buddy == e.rank && q.copy.Sealed() {
		if err := q.copy.Reserve(start + n); err != nil {
			return none, fmt.Errorf("socket: replica of sequence %d: %w", c.Seq, err)
		}
	}
	return seg, nil
}

// embed looks the tokens up, notes them in the owners' histories, and lists the
// rows whose logits are wanted.
func (e *epoch) embed(s *step) {
	first := map[uint64]int{}
	for _, seg := range e.batch.Segments {
		first[seg.Seq] = seg.First
	}
	h := e.config.Hidden
	for _, c := range s.request.Chunks {
		q := e.seqs[c.Seq]
		for i, t := range c.Tokens {
			row := first[c.Seq] + i
			x := e.batch.X[row*h : (row+1)*h]
			e.weights.Embedding.Row(x, int(t), 0, h)
			if by := e.weights.EmbeddingScale; by != 1 {
				tensor.Scale(x, by)
			}
			if q.owner == e.rank {
				q.note(int32(t), int(c.Start)+i)
			}
		}
		last := len(c.Tokens) - 1
		if c.WantPromptLogprobs {
			for i := range c.Tokens {
				if next := int(c.Start) + i + 1; i < last || c.Next != 0 {
					token := c.Next - 1
					if i < last {
						token = c.Tokens[i+1]
					}
					s.wanted = append(s.wanted, wanted{row: first[c.Seq] + i, seq: q, position: next, score: int32(token), top: int(c.PromptLogprobs)})
				}
			}
		}
		if c.Sample {
			s.wanted = append(s.wanted, wanted{row: first[c.Seq] + last, seq: q, position: int(c.Start) + last + 1, sample: true})
		}
	}
}

// commit moves the read marks and makes the writes of prefill durable; those of
// decode stay open until the next step (settle).
func (e *epoch) commit(s *step) {
	for _, c := range s.request.Chunks {
		q := e.seqs[c.Seq]
		q.read += len(c.Tokens)
		if c.Prefill && q.part != nil {
			q.part.Commit(len(c.Tokens))
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
