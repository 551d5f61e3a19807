package socket

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/topology"
)

// epoch is everything a socket holds for one placement. It is built by the
// executor, used by a step of each micro-batch at a time, and torn down as a whole.
type epoch struct {
	*caches  // outlive the epoch
	place    topology.Placement
	rank     int
	config   model.Config
	weights  *shard.Weights
	device   layer.Device
	geometry kvcache.Geometry
	form     tier.Form    // of blocks in files
	score    tensor.Score // of attention
	micro    [MicroBatches]*microBatch
	maxRows  int
	dt       tensor.DType      // of the matrices
	group    *exchanges        // once it has joined
	line     *line             // to the other ranks, beside the exchanges
	ropes    []*layer.Rotation // the first is that of layers without a window
	pool     *tensor.Pool
	await    func(*layer.Batch, layer.Listener, func()) // begins an exchange
	grammars func() (*grammar.Engine, error)
}

// microBatch is what the steps of one use one after the other.
type microBatch struct {
	batch *layer.Batch
	head  head
	rows  replicas // of the tokens of a step; its buffers are used again
	ids   []uint32 // tokens of one run, as the embedding takes them
}

func newEpoch(cfg *Config, p topology.Placement, rank int, w *shard.Weights, dt, kv tensor.DType, held *caches, maxRows int) *epoch {
	c := cfg.Checkpoint.Config
	e := &epoch{
		caches: held, place: p, rank: rank, config: c, weights: w, device: cfg.device(), pool: cfg.Pool, maxRows: maxRows, dt: dt,
		geometry: GeometryOf(&c, kv), score: tensor.Score{Scale: c.AttentionScale()}, ropes: layer.RotationsOf(&c),
		grammars: cfg.Grammars,
	}
	e.microBatch(0)
	return e
}

// microBatch is that of a number; the first time it takes the memory of its activations.
func (e *epoch) microBatch(batch int) *microBatch {
	if e.micro[batch] == nil {
		c := &e.config
		b := newBatch(e.device, c, e.maxRows, e.geometry.Layout)
		b.Type, b.MicroBatch = e.dt, uint8(batch)
		e.micro[batch] = &microBatch{batch: b, head: head{ends: e.weights.Ends, pool: e.pool}}
	}
	return e.micro[batch]
}

func newBatch(on layer.Device, c *model.Config, maxRows int, cache tensor.KVLayout) *layer.Batch {
	d := layer.DimsOf(c)
	return layer.NewBatch(d, maxRows, on.Backend(d, maxRows, cache))
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
	sampled []*proto.Sampled // of all passes; what was drawn in each follows that of the pass before
	pass    int              // passes that are done
	told    [][]float32      // over several sockets: the tokens that rows of each have drawn
	stages  []stage
	sent    *layer.Batch // to the layers; the actor's, while the executor has the rest
	at      int
	reply   func(*proto.StepReply, error)

	spent      Stages
	compute    time.Duration // of the layers, in passes that are done
	observe    func(Stages)
	copied     uint64 // bytes sent to replicas
	spilled    []*proto.Spill
	lost       []uint64
	wireBefore uint64
	before     tensor.Spent
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
	s.micro = e.microBatch(s.work.MicroBatch)
	if len(s.work.Runs) == 0 {
		s.micro.batch.ClearTimes()
		return nil
	}
	return e.fill(s)
}

// fill puts the runs of a pass into the batch.
func (e *epoch) fill(s *step) error {
	segments := make([]layer.Segment, len(s.work.Runs))
	for i := range s.work.Runs {
		segments[i] = e.segment(&s.work.Runs[i])
		segments[i].Leave = e.leaves(s.work, i)
	}
	if err := s.micro.batch.Reset(e.place, e.rank, segments, e.ropes...); err != nil {
		return err
	}
	return e.embed(s)
}

// segment is a run of tokens as the layers see it.
func (e *epoch) segment(c *Run) layer.Segment {
	q := e.seqs[c.Seq]
	seg := layer.Segment{Seq: c.Seq, N: len(c.Tokens), Start: c.Start, Prefill: c.Prefill, Owner: c.Owner}
	switch {
	case c.Prefill && q.part != nil:
		seg.Cache = e.device.Prompt(q.part, q.seen, e.score)
	case !c.Prefill && q.owner == e.rank:
		seg.Cache = e.device.Owned(q.own, e.score, e.ropes[0].At)
	}
	return seg
}

// leaves is how many first rows of a run go no further than SwiftKV's pass: neither their
// logits are requested, nor does the policy look at their queries in the later layers.
func (e *epoch) leaves(w *Work, run int) int {
	c := &w.Runs[run]
	if e.config.SwiftKV.Layers == 0 || !c.Prefill {
		return 0
	}
	q := e.seqs[c.Seq]
	n := min(len(c.Tokens), max(0, q.policy.Unseen(q.prompt)-c.Start))
	for _, x := range w.Wanted {
		if x.Run == run {
			n = min(n, x.Row)
		}
	}
	return n
}

// embed looks the tokens up, notes them in the owners' histories (those of decode rows
// when their tokens are drawn), and lists the rows whose logits are requested.
func (e *epoch) embed(s *step) error {
	b := s.micro.batch
	first, last, stay := make(map[uint64]int, len(b.Segments)), make(map[uint64]int, len(b.Segments)), 0
	for _, seg := range b.Segments {
		first[seg.Seq], last[seg.Seq] = seg.First, stay-seg.Leave
		stay += seg.N - seg.Leave
	}
	drawn := make([]bool, len(s.work.Runs))
	s.wanted = make([]wanted, 0, len(s.work.Wanted))
	for _, w := range s.work.Wanted {
		c := &s.work.Runs[w.Run]
		out := wanted{row: last[c.Seq] + w.Row, seq: e.seqs[c.Seq], position: w.Position, sample: w.Sample, score: w.Score, top: w.Top, token: none}
		if w.Sample && !c.Prefill {
			out.token, out.draft, drawn[w.Run] = c.Tokens[w.Row], w.Row > 0, true
		}
		s.wanted = append(s.wanted, out)
	}
	lookUp := func(checked bool) (err error) {
		for i := 0; i < len(s.work.Runs) && err == nil; i++ {
			c := &s.work.Runs[i]
			ids := s.micro.ids[:0]
			for _, t := range c.Tokens {
				ids = append(ids, uint32(t))
			}
			s.micro.ids = ids
			err = b.Backend.Embed(e.weights.Ends, first[c.Seq], ids, checked)
		}
		return err
	}
	state := e.weights.Embedding.State()
	err := lookUp(false)
	if err == nil && !e.weights.Embedding.Unchanged(state) {
		err = lookUp(true)
	}
	if err != nil {
		return err
	}
	for i := range s.work.Runs {
		c := &s.work.Runs[i]
		q := e.seqs[c.Seq]
		if drawn[i] && q.owner == e.rank {
			q.must.warm(c.Tokens)
		}
		for j, t := range c.Tokens {
			switch {
			case q.owner != e.rank || drawn[i]:
			case c.Prefill:
				q.note(t, c.Start+j)
			default:
				q.feed(t, c.Start+j)
			}
		}
	}
	return nil
}
