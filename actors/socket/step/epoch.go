package step

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Epoch is the state of a socket for one placement. The executor builds it, steps use it one at a time, and
// it is freed as a whole.
type Epoch struct {
	*caches.Epoch
	Group   Group                                                 // set when the group has formed
	Await   func(prompts bool, l executor.Listener, begin func()) // as of executor.Executor
	Weights *shard.Weights

	config    model.Config
	device    layer.Device
	pool      *tensor.Pool
	buf       *buffers
	maxRows   int
	handovers map[*caches.Sequence]*handover // hand-overs that take several steps
	dt        tensor.DType                   // type of the matrices
	rotations []*rotation.Table              // that layers choose from
	ropes     kvcache.Ropes                  // of the keys in the caches
}

// Group performs the exchanges of an epoch.
type Group interface {
	layer.Group
	WireBytes() uint64         // bytes that this rank has sent so far; a broadcast counts once
	Lateness() []time.Duration // time that this rank has waited for each other rank so far
}

// Options are the parts of an epoch besides its caches.
type Options struct {
	Config  model.Config
	Weights *shard.Weights // closed with the epoch
	Type    tensor.DType   // of the matrices
	Device  layer.Device
	Pool    *tensor.Pool
	MaxRows int // of a step
}

// buffers is the memory that steps share, one after the other.
type buffers struct {
	batch *layer.Batch
	parts []*layer.Batch // of steps whose rows are divided
	head  head
	rows  replicas // rows of a step's tokens for replicas
	ids   []uint32 // scratch: tokens of one run for the embedding
}

// NewEpoch returns an epoch over caches. Close frees it.
func NewEpoch(c *caches.Epoch, o Options) *Epoch {
	e := &Epoch{
		Epoch: c, Weights: o.Weights, config: o.Config, device: o.Device, pool: o.Pool, maxRows: o.MaxRows, dt: o.Type,
		rotations: rotation.TablesOf(&o.Config), handovers: map[*caches.Sequence]*handover{},
	}
	e.ropes = rotation.RopesOf(&o.Config, e.rotations)
	e.buf = &buffers{batch: e.newBatch(0), head: head{ends: e.Weights.Ends, pool: e.pool}}
	return e
}

// newBatch allocates a batch. Batches in flight together have different numbers.
func (e *Epoch) newBatch(number int) *layer.Batch {
	b := newBatch(e.device, &e.config, e.maxRows, e.Geometry.Layout)
	b.Type, b.MicroBatch = e.dt, uint8(number)
	return b
}

func newBatch(on layer.Device, c *model.Config, maxRows int, cache tensor.KVLayout) *layer.Batch {
	d := layer.DimsOf(c)
	return layer.NewBatch(d, maxRows, on.Backend(d, maxRows, cache))
}

// Close frees the epoch and the caches that no later epoch can use.
func (e *Epoch) Close(effects []machine.Effect) {
	e.Release(effects)
	for _, b := range append(e.buf.parts, e.buf.batch) {
		b.Close()
	}
	e.Weights.Close()
	for _, a := range e.Adapters {
		_ = a.Close() // unmaps memory, which cannot fail
	}
}

// begin reserves every cache block that the step needs and fills the batch. Later parts of the step
// cannot run out of memory.
func (e *Epoch) begin(s *Step) error {
	if err := e.Do(s.Work.First); err != nil {
		return err
	}
	if len(s.Work.Runs) == 0 {
		s.buf.batch.ClearTimes()
		return nil
	}
	return e.fill(s)
}

// fill adds the runs of a pass to the batch.
func (e *Epoch) fill(s *Step) error {
	segments := make([]layer.Segment, len(s.Work.Runs))
	for i := range s.Work.Runs {
		segments[i] = e.segment(&s.Work.Runs[i])
		segments[i].Dropped = e.droppedRows(s.Work, i)
	}
	s.buf.batch.Section = layer.Section{}
	if err := s.buf.batch.Reset(e.Place, e.Rank, segments, e.rotations...); err != nil {
		return err
	}
	if err := e.divide(s); err != nil {
		return err
	}
	return e.embed(s)
}

// segment returns a run of tokens as a segment of the layers.
func (e *Epoch) segment(c *plan.Run) layer.Segment {
	q := e.Seqs[c.Seq]
	seg := layer.Segment{Seq: c.Seq, N: len(c.Tokens), Start: c.Start, Prefill: c.Prefill, Owner: c.Owner, Adapter: q.Adapter}
	switch {
	case c.Prefill && q.PromptShard != nil:
		seg.Cache = e.device.Prompt(q.PromptShard, q.Stats, e.Score)
	case !c.Prefill && q.Owner == e.Rank:
		seg.Cache = e.device.Owned(q.Cache, e.Score, e.ropes)
	}
	return seg
}

// droppedRows returns the number of first rows of a run that end before the later layers. Their logits
// are not requested, and the policy does not observe their queries there. Of layers that read the caches
// of earlier ones it observes nothing.
func (e *Epoch) droppedRows(w *machine.Work, run int) int {
	c := &w.Runs[run]
	if e.config.SwiftKV.Layers+e.config.OwnKV == 0 || !c.Prefill {
		return 0
	}
	q, n := e.Seqs[c.Seq], len(c.Tokens)
	if e.config.SwiftKV.Layers > 0 {
		n = min(n, max(0, q.Policy.SkippableTokens(q.Prompt)-c.Start))
	}
	if q.Pool != nil {
		lo, _ := q.Pool.Rows(c.Start, c.Start+len(c.Tokens))
		n = min(n, lo-c.Start)
	}
	for x := range w.Wanted() {
		if x.Run == run {
			n = min(n, x.Row)
		}
	}
	return n
}

// embed looks up the embeddings of the tokens and appends the tokens to the owners' histories. Tokens of
// decode rows with samples, after the known ones, are appended when they are sampled. embed lists the rows
// whose logits are requested.
func (e *Epoch) embed(s *Step) error {
	b := s.buf.batch
	last, stay := make(map[uint64]int, len(b.Segments)), 0
	for _, seg := range b.Segments {
		last[seg.Seq] = stay - seg.Dropped
		stay += seg.N - seg.Dropped
	}
	drawn := make([]bool, len(s.Work.Runs))
	s.wanted = make([]wanted, 0, len(s.Work.Runs))
	for w := range s.Work.Wanted() {
		c := &s.Work.Runs[w.Run]
		out := wanted{row: last[c.Seq] + w.Row, seq: e.Seqs[c.Seq], position: w.Position, sample: w.Sample,
			score: w.Score, top: w.Top, token: plan.None}
		if w.Sample && !c.Prefill {
			out.token, out.draft, drawn[w.Run] = c.Tokens[w.Row], w.Row > c.Known, true
		}
		s.wanted = append(s.wanted, out)
	}
	s.pooled = s.pooled[:0]
	for i := range s.Work.Runs {
		if c := &s.Work.Runs[i]; e.Seqs[c.Seq].Pool != nil {
			s.pooled = append(s.pooled, pooledRun{c, e.Seqs[c.Seq], last[c.Seq]})
		}
	}
	for _, p := range s.parts {
		if err := e.lookUp(s.buf, p.batch, p.runs); err != nil {
			return err
		}
	}
	if s.parts == nil {
		if err := e.lookUp(s.buf, b, s.Work.Runs); err != nil {
			return err
		}
	}
	for i := range s.Work.Runs {
		c := &s.Work.Runs[i]
		q := e.Seqs[c.Seq]
		if drawn[i] && q.Owner == e.Rank {
			q.Grammar.Warm(c.Tokens[c.Known:])
		}
		for j, t := range c.Tokens {
			switch {
			case q.Owner != e.Rank || drawn[i] && j >= c.Known:
			case c.Prefill:
				q.AddToken(t, c.Start+j)
			default:
				q.Feed(t, c.Start+j)
			}
		}
	}
	return nil
}

// lookUp fills the rows of a batch with the embeddings of the tokens of its runs.
func (e *Epoch) lookUp(m *buffers, b *layer.Batch, runs []plan.Run) error {
	first := make(map[uint64]int, len(b.Segments))
	for i := range b.Segments {
		first[b.Segments[i].Seq] = b.Segments[i].First
	}
	lookUp := func(checked bool) (err error) {
		for i := 0; i < len(runs) && err == nil; i++ {
			ids := m.ids[:0]
			for _, t := range runs[i].Tokens {
				ids = append(ids, uint32(t))
			}
			m.ids = ids
			err = b.Backend.Embed(e.Weights.Ends, first[runs[i].Seq], ids, checked)
		}
		return err
	}
	state := e.Weights.Embedding.State()
	err := lookUp(false)
	if err == nil && !e.Weights.Embedding.Unchanged(state) {
		err = lookUp(true)
	}
	return err
}

// ropesUntil returns the rotations of keys for positions below `tokens`.
func (e *Epoch) ropesUntil(tokens int) kvcache.Ropes {
	for _, r := range e.rotations {
		r.Until(tokens - 1)
	}
	return e.ropes
}
