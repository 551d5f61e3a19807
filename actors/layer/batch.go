package layer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/inorder"
	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/layer/owntime"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Cache is a layer's view of a sequence's cache on this socket. Writes within one step are
// idempotent.
type Cache interface {
	// WriteRun stores the rotated keys and the values of n tokens, starting at true position pos.
	// Those of token i are at k[i*ldk:] and v[i*ldv:].
	WriteRun(layer, head, pos, n int, k []float32, ldk int, v []float32, ldv int)
	// ParallelWrite reports whether several threads may write n prompt tokens from position pos on in
	// parallel, by calls of WriteRun that share no block (tensor.BlockSlots). It prepares the
	// cache for that.
	ParallelWrite(layer, head, pos, n int) bool
	// BatchedDecode describes how n decode tokens from position pos on may be processed. If together,
	// all are written before the first View. If causal, one View serves all: token i reads all but
	// the last n-1-i slots of the last token's view. Otherwise each token is written, viewed and
	// observed before the next.
	BatchedDecode(layer, pos, n int) (together, causal bool)
	// View returns the blocks of one head, the number of slots in use, and the mask of slots that
	// the token at pos reads (nil: all). q is the token's rotated query (group, HeadDim). Blocks
	// may be stored in s, which must not be used for another View before they have been read.
	View(layer, head, pos int, q []float32, s *tensor.AttnScratch) (blocks [][]byte, n int, valid []uint64)
	// Masks returns the slots of Blocks that each of n tokens from position pos on reads, or nil if each
	// needs a View. q[i*ldq:] is the rotated query of token i.
	Masks(layer, head, pos, n int, q []float32, ldq int, s *tensor.AttnScratch) [][]uint64
	// ParallelViews reports whether several threads may call View for a head of the layer at the same
	// time, each with its own scratch.
	ParallelViews(layer int) bool
	// Blocks returns all blocks of one head in storage order, for prefetching before View.
	Blocks(layer, head int) [][]byte
	// Read estimates the maximum number of blocks that View returns.
	Read(layer, head int) int
	// Prefetch prefetches the memory that WriteRun of the token at true position pos will touch.
	Prefetch(layer, head, pos int)
	// Observe passes the rotated queries of n tokens from position pos on to the cache policy.
	// q[i*ldq:] is (group, HeadDim) of token i. Their keys are in the cache already.
	Observe(layer, head, pos, n int, q []float32, ldq int)
	// State returns the state of one KV head of a recurrent layer.
	State(layer, head int) *states.State
}

// Segment is a run of rows of one sequence in a step.
type Segment struct {
	Seq     uint64
	Cache   Cache // nil if this socket stores nothing of the sequence
	First   int   // row of the first token
	N       int
	Start   int              // true position of the first token
	Prefill bool             // heads are split over the sockets; otherwise the owner has all of them
	Owner   int              // rank that owns the sequence
	Dropped int              // number of first rows of a prompt that end before the later layers (dropAfter)
	Adapter *lowrank.Adapter // of all rows; nil: none
}

func (s *Segment) rows() topology.Range { return topology.Range{Lo: s.First, Hi: s.First + s.N} }

// Batch describes one step on one socket: its rows in canonical order (decode rows by owner, then
// prefill rows) and everything that follows from them: the stages of each layer and the contents of
// each exchange. All ranks derive the same description. Activations are in Backend. The goroutine
// that runs the current stage owns the batch.
type Batch struct {
	Dims       Dims
	Place      topology.Placement
	Rank       int
	MicroBatch uint8        // number of the micro-batch, part of the numbers of its collectives
	Type       tensor.DType // type of the layers' matrices
	Backend    Backend

	Section // set it before Reset

	T        int       // rows
	Segments []Segment // in row order
	decode   int       // number of decode rows, which come first
	maxRows  int

	step      conditions               // conditions of this step, common to all its layers
	schedules map[conditions]*Schedule // all schedules built so far
	lists     [][kinds][2]*Schedule    // of this step, by Kind.Widths and index of Kind; [1] is for the last layer
	runs      []LayerRun               // reused by every call
	caches    int                      // number of caches that SwiftKV's pass fills
	kept      []topology.Range         // scratch of dropRows: the remaining rows, by their old numbers

	widths []widthsBatch // by index of Dims.Widths; nil: all layers have the same widths

	adapted  []lowrank.Rows   // rows with adapters
	rows     []topology.Range // prompt rows owned by each rank (rowRanges)
	nodes    [][]tensor.Span  // tree nodes of each rank
	parts    [][]float32      // scatterDown, scatterPrompt: the rows of this rank's tree nodes that are summed
	bounds   []int            // where the values of each rank's rows begin in parts
	out, in  [][]float32      // data that this rank sends to and receives from each rank
	send     [][]byte         // out and in as bytes
	recv     [][]byte
	tiles    []Tile // tiles of an exchange, appended by addTile
	addTile  func(Tile)
	sequence uint64       // number of the last collective
	uses     atomic.Int32 // of the backend's memory: by the owner until Close, and by each exchange in flight

	Compute, Wait time.Duration
	Spent         [Parts]time.Duration // Compute by part, all layers together
	Observed      time.Duration        // portion of Spent[Attention] that policies use during prefill
	ExpertsRead   int                  // number of experts whose weights were read, all layers together
	own           owntime.Meter
	order         inorder.Order // among the micro-batches of a step
}

// Section is the part of a model that a batch runs through. The zero value is the whole model.
type Section struct {
	Before, After int            // the numbers of first and last layers without it; SwiftKV's pass counts as one
	Caches        topology.Range // that SwiftKV's pass computes; zero: all
}

// NewBatch returns a batch for steps of at most maxRows rows, computed by backend.
func NewBatch(d Dims, maxRows int, backend Backend) *Batch {
	b := &Batch{Dims: d, maxRows: maxRows, Backend: backend, schedules: map[conditions]*Schedule{}}
	b.uses.Store(1)
	b.lists = make([][kinds][2]*Schedule, max(1, len(d.Widths)))
	if d.Widths != nil {
		b.widths = make([]widthsBatch, 1+len(d.Widths))
		b.widths[0].dims = d
		for i := range d.Widths {
			b.widths[1+i].dims = d.of(i)
		}
	}
	b.addTile = func(t Tile) { b.tiles = append(b.tiles, t) }
	return b
}

// Close frees the memory of the backend. No stage runs, but an exchange may be in flight, whose group is being closed: it
// uses its part of the memory until it ends.
func (b *Batch) Close() {
	b.Backend.Close()
	b.release()
}

// release ends a use of the backend's memory.
func (b *Batch) release() {
	if b.uses.Add(-1) == 0 {
		b.Backend.CloseReduced()
	}
}

// Reset prepares the batch for a step. It sorts segments into canonical order and numbers their
// rows. There must be Dims.Ropes rotations.
func (b *Batch) Reset(p topology.Placement, rank int, segments []Segment, rotations ...*rotation.Table) error {
	slices.SortStableFunc(segments, func(x, y Segment) int {
		switch {
		case x.Prefill != y.Prefill:
			if y.Prefill {
				return -1
			}
			return 1
		case !x.Prefill && x.Owner != y.Owner:
			return x.Owner - y.Owner
		}
		return byAdapter(x.Adapter, y.Adapter)
	})
	b.Rank, b.Segments, b.T, b.decode = rank, segments, 0, 0
	b.place(p)
	for i := range segments {
		segments[i].First = b.T
		b.T += segments[i].N
		if !segments[i].Prefill {
			b.decode = b.T
		}
	}
	if b.T > b.maxRows {
		return fmt.Errorf("layer: step has %d rows, this socket was set up for %d", b.T, b.maxRows)
	}
	b.rows = b.rowRanges()
	b.findAdapted()
	b.classify()
	b.ClearTimes()
	b.order = inorder.Order{}
	b.Backend.Begin(b, rotations)
	return nil
}

// ClearTimes resets a step's times. Reset does so as well.
func (b *Batch) ClearTimes() {
	b.Compute, b.Wait, b.Observed, b.Spent, b.ExpertsRead = 0, 0, 0, [Parts]time.Duration{}, 0
	b.own.Begin()
}

// widthsBatch is the part of a batch for the layers of some widths.
type widthsBatch struct {
	dims  Dims
	place topology.Placement
	nodes [][]tensor.Span // Batch.nodes
}

// place sets the placement, for layers of all widths. Until enter, the batch has the common divisors.
func (b *Batch) place(p topology.Placement) {
	b.Place = p
	if b.widths == nil {
		return
	}
	if was := b.widths[0].place.Slices; len(was) != len(p.Slices) || &was[0] != &p.Slices[0] {
		for i := range b.widths {
			w := &b.widths[i]
			w.place, w.nodes = p, nil
			if i > 0 {
				w.place.Slices = slices.Clone(p.Slices)
				for r, s := range p.Slices {
					w.place.Slices[r] = b.widths[0].dims.slice(s, i-1)
				}
			}
		}
	}
	b.use(0)
}

// enter sets the widths of the layer that is computed next.
func (b *Batch) enter(widths int) {
	if b.widths != nil {
		b.use(1 + widths)
	}
}

func (b *Batch) use(i int) {
	w := &b.widths[i]
	if w.nodes == nil {
		w.nodes = make([][]tensor.Span, len(w.place.Slices))
		for r, s := range w.place.Slices {
			w.nodes[r] = tensor.Subtrees(s.FFNUnits.Lo, s.FFNUnits.Hi, tensor.Units(w.dims.FFN))
		}
	}
	b.Dims, b.Place, b.nodes = w.dims, w.place, w.nodes
}

func (b *Batch) all() topology.Range { return topology.Range{Lo: 0, Hi: b.T} }

// bulkRows is the number of prompt rows from which the exchanges of a step are large. A sequence that is cut over
// the sockets decodes one such row a step.
const bulkRows = 16

// Bulk reports whether the exchanges of a step are large.
func (b *Batch) Bulk() bool { return b.T-b.decode >= bulkRows }

// HasPrefill reports whether the step has prompt rows.
func (b *Batch) HasPrefill() bool { return b.decode < b.T }

// heads returns the KV heads of a segment whose attention a rank computes.
func (b *Batch) heads(s *Segment, rank int) topology.Range {
	if s.Prefill {
		return b.Place.Slices[rank].KVHeads
	}
	if s.Owner == rank {
		return topology.Range{Lo: 0, Hi: b.Dims.KVHeads}
	}
	return topology.Range{}
}

// decodeRows returns the decode rows that a rank owns. They are contiguous by construction.
func (b *Batch) decodeRows(rank int) topology.Range {
	r := topology.Range{}
	for i := range b.Segments {
		s := &b.Segments[i]
		if s.Prefill || s.Owner != rank {
			continue
		}
		if r.Len() == 0 {
			r.Lo = s.First
		}
		r.Hi = s.First + s.N
	}
	return r
}

// rowRanges returns the prompt rows that each rank owns. The rows are divided evenly; any division
// gives the same bits.
func (b *Batch) rowRanges() []topology.Range {
	n := len(b.Place.Slices)
	shares := make([]float64, n)
	for i := range shares {
		shares[i] = 1
	}
	r := topology.Apportion(b.T-b.decode, shares)
	for i := range r {
		r[i].Lo += b.decode
		r[i].Hi += b.decode
	}
	return r
}

// PromptRows returns the prompt rows that this rank owns.
func (b *Batch) PromptRows() topology.Range { return b.rows[b.Rank] }

// SharesRows reports whether a layer needs all rows of the residual stream on every rank, and not
// only those that the rank owns.
func (b *Batch) SharesRows() bool { return !b.alone() && !b.step.owned }

// ShareRows sends this rank's own rows of the residual stream to all ranks. RowsArrived puts the others'
// in place.
func (b *Batch) ShareRows(g Group, done func(error)) { exchangeResidual.start(b, g, done) }

func (b *Batch) RowsArrived() { exchangeResidual.unpack(b) }

// NextOp returns the next collective's number in this micro-batch.
func (b *Batch) NextOp() uint64 {
	b.sequence++
	return uint64(collective.Op(b.MicroBatch, b.sequence))
}
