package socket

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/topology"
)

// epoch is the state of a socket for one placement. The executor builds it, the steps of each
// micro-batch use it one at a time, and it is freed as a whole.
type epoch struct {
	*caches   // shared with later epochs
	place     topology.Placement
	rank      int
	config    model.Config
	weights   *shard.Weights
	device    layer.Device
	geometry  kvcache.Geometry
	form      tier.Form    // of the prefix cache's blocks in files
	score     tensor.Score // attention scale and options
	micro     [machine.MicroBatches]*microBatch
	maxRows   int
	handovers map[*sequence]*handover // hand-overs that take several steps
	dt        tensor.DType            // type of the matrices
	group     *exchanges              // set when the group has formed
	blockLink *blockLink              // for transfers outside of the exchanges
	rotations []*layer.Rotation       // that layers choose from
	ropes     kvcache.Ropes           // of the keys in the caches
	pool      *tensor.Pool
	await     func(*layer.Batch, layer.Listener, func()) // starts an exchange
	grammars  func() (*grammar.Engine, error)
}

// microBatch is the memory that the steps of one micro-batch share, one after the other.
type microBatch struct {
	batch *layer.Batch
	head  head
	rows  replicas // rows of a step's tokens for replicas
	ids   []uint32 // scratch: tokens of one run for the embedding
}

func newEpoch(cfg *Config, p topology.Placement, rank int, w *shard.Weights, dt, kv tensor.DType, held *caches, maxRows int) *epoch {
	c := cfg.Checkpoint.Config
	e := &epoch{
		caches: held, place: p, rank: rank, config: c, weights: w, device: cfg.device(), pool: cfg.Pool, maxRows: maxRows, dt: dt,
		geometry: shard.GeometryOf(&c, kv), score: c.Score(),
		rotations: layer.RotationsOf(&c), grammars: cfg.Grammars, handovers: map[*sequence]*handover{},
	}
	e.ropes = layer.RopesOf(&c, e.rotations)
	e.microBatch(0)
	return e
}

// microBatch returns a micro-batch by number. The first call allocates its activations.
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

// close frees the epoch and the caches that no later epoch can use.
func (e *epoch) close(effects []machine.Effect) {
	e.release(effects)
	e.weights.Close()
}

// begin reserves every cache block that the step needs and fills the batch. Later parts of the step
// cannot run out of memory.
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

// fill adds the runs of a pass to the batch.
func (e *epoch) fill(s *step) error {
	segments := make([]layer.Segment, len(s.work.Runs))
	for i := range s.work.Runs {
		segments[i] = e.segment(&s.work.Runs[i])
		segments[i].Leave = e.droppedRows(s.work, i)
	}
	if err := s.micro.batch.Reset(e.place, e.rank, segments, e.rotations...); err != nil {
		return err
	}
	return e.embed(s)
}

// segment returns a run of tokens as a segment of the layers.
func (e *epoch) segment(c *plan.Run) layer.Segment {
	q := e.seqs[c.Seq]
	seg := layer.Segment{Seq: c.Seq, N: len(c.Tokens), Start: c.Start, Prefill: c.Prefill, Owner: c.Owner}
	switch {
	case c.Prefill && q.promptShard != nil:
		seg.Cache = e.device.Prompt(q.promptShard, q.stats, e.score)
	case !c.Prefill && q.owner == e.rank:
		seg.Cache = e.device.Owned(q.cache, e.score, e.ropes)
	}
	return seg
}

// droppedRows returns the number of first rows of a run that end with SwiftKV's pass: their logits
// are not requested, and the policy does not observe their queries in the later layers.
func (e *epoch) droppedRows(w *machine.Work, run int) int {
	c := &w.Runs[run]
	if e.config.SwiftKV.Layers == 0 || !c.Prefill {
		return 0
	}
	q := e.seqs[c.Seq]
	n := min(len(c.Tokens), max(0, q.policy.Unseen(q.prompt)-c.Start))
	for x := range w.Wanted() {
		if x.Run == run {
			n = min(n, x.Row)
		}
	}
	return n
}

// embed looks up the embeddings of the tokens, appends the tokens to the owners' histories (for decode
// rows only when their tokens are sampled), and lists the rows whose logits are requested.
func (e *epoch) embed(s *step) error {
	b := s.micro.batch
	first, last, stay := make(map[uint64]int, len(b.Segments)), make(map[uint64]int, len(b.Segments)), 0
	for _, seg := range b.Segments {
		first[seg.Seq], last[seg.Seq] = seg.First, stay-seg.Leave
		stay += seg.N - seg.Leave
	}
	drawn := make([]bool, len(s.work.Runs))
	s.wanted = make([]wanted, 0, len(s.work.Runs))
	for w := range s.work.Wanted() {
		c := &s.work.Runs[w.Run]
		out := wanted{row: last[c.Seq] + w.Row, seq: e.seqs[c.Seq], position: w.Position, sample: w.Sample, score: w.Score, top: w.Top, token: plan.None}
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
			q.grammar.Warm(c.Tokens)
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
