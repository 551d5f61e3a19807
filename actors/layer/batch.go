package layer

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Cache is what a layer asks of a sequence's store on this socket. Writes of
// one step may be repeated; they give the same state.
type Cache interface {
	// WriteRun stores the keys (rotated) and values of n tokens from true position pos on,
	// those of the i-th at k[i*ldk:] and v[i*ldv:].
	WriteRun(layer, head, pos, n int, k []float32, ldk int, v []float32, ldv int)
	// Apart says whether several threads may write n tokens of a prompt from position pos on, by
	// calls of WriteRun that share no block (tensor.BlockSlots), and makes ready for it.
	Apart(layer, head, pos, n int) bool
	// Together says how n tokens of decode from position pos on may be attended to: all of
	// them put before the first is viewed (together), and viewed at once (causal: the i-th
	// reads all but the last n-1-i slots of the last one's view). Otherwise each is put,
	// viewed and observed before the next.
	Together(layer, pos, n int) (together, causal bool)
	// View returns the blocks of one head, the number of slots in use and
	// which of them the query q (group, HeadDim), rotated, of the token at pos reads (nil:
	// all). Blocks may lie in s, until it is used for another View.
	View(layer, head, pos int, q []float32, s *tensor.AttnScratch) (blocks [][]byte, n int, valid []uint64)
	// Blocks are those of one head, as they lie: what is worth fetching before View.
	Blocks(layer, head int) [][]byte
	// Read is how many blocks View returns at most, about.
	Read(layer, head int) int
	// Fetch prefetches what WriteRun of the token at true position pos will touch.
	Fetch(layer, head, pos int)
	// Observe shows the policy the rotated queries of n tokens from position pos on,
	// q[i*ldq:] being (group, HeadDim) of token i. Their keys are in the cache.
	Observe(layer, head, pos, n int, q []float32, ldq int)
}

// Segment is a run of rows of one sequence in a step.
type Segment struct {
	Seq     uint64
	Cache   Cache // nil when this socket keeps nothing of the sequence
	First   int   // row of the first token
	N       int
	Start   int  // true position of the first token
	Prefill bool // heads are split over the sockets; else the owner has them all
	Owner   int  // rank that owns the sequence
	Leave   int  // so many first rows of a prompt go no further than SwiftKV's pass
}

func (s *Segment) rows() topology.Range { return topology.Range{Lo: s.First, Hi: s.First + s.N} }

// Batch is one step on one socket: its rows in canonical order (decode rows by
// owner, then prefill rows), and what follows from that alone, which all ranks know:
// which stages a layer has, who gives what to whom. What is computed lies in Backend.
// It is owned by whoever runs the current stage.
type Batch struct {
	Dims       Dims
	Place      topology.Placement
	Rank       int
	MicroBatch uint8        // which of those in flight together; numbers the collectives
	Type       tensor.DType // of the layers' matrices
	Backend    Backend

	T        int       // rows
	Segments []Segment // in row order
	decode   int       // rows that are decode rows; the rest are prefill rows
	maxRows  int

	step      conditions               // of any layer of this step
	schedules map[conditions]*Schedule // that were needed so far
	lists     [kinds][2]*Schedule      // of this step: by kind of layer; not the last layer, the last
	runs      []LayerRun               // in hand
	caches    int                      // of SwiftKV's later layers
	stays     []topology.Range         // leave: rows, as they were

	rows     []topology.Range // prompt rows that each rank owns, see rowRanges
	nodes    [][]tensor.Span  // tree nodes of every rank
	parts    [][]float32      // scatterDown, scatterPrompt: some rows of this rank's tree nodes
	bounds   []int            // where in them the values of each rank's rows begin
	out, in  [][]float32      // what each rank gets and gives
	send     [][]byte         // the same, as bytes
	recv     [][]byte
	tiles    []Tile // of an exchange, listed by addTile
	addTile  func(Tile)
	sequence uint64 // of the last collective

	Compute, Wait time.Duration
	Spent         [Parts]time.Duration // of Compute, all layers together
	Observed      time.Duration        // of Spent[Attention]: what policies look at while a prompt is read
	ExpertsRead   int                  // whose weights were read, all layers together
	own           own
}

// NewBatch describes steps of at most maxRows rows, which backend computes.
func NewBatch(d Dims, maxRows int, backend Backend) *Batch {
	b := &Batch{Dims: d, maxRows: maxRows, Backend: backend, schedules: map[conditions]*Schedule{}}
	b.addTile = func(t Tile) { b.tiles = append(b.tiles, t) }
	return b
}

// Reset prepares the batch for a step. Segments are put in canonical order and
// given their rows; rotations, of which there are Dims.Ropes, are those of every position.
func (b *Batch) Reset(p topology.Placement, rank int, segments []Segment, rotations ...*Rotation) error {
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
		return 0
	})
	b.Place, b.Rank, b.Segments, b.T, b.decode = p, rank, segments, 0, 0
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
	b.classify()
	b.ClearTimes()
	b.Backend.Begin(b, rotations)
	return nil
}

// ClearTimes begins a step's times anew; Reset does so, too.
func (b *Batch) ClearTimes() {
	b.Compute, b.Wait, b.Observed, b.Spent, b.ExpertsRead = 0, 0, 0, [Parts]time.Duration{}, 0
	b.own.begin()
}

func (b *Batch) all() topology.Range { return topology.Range{Lo: 0, Hi: b.T} }

// HasPrefill reports whether the step reads prompt tokens.
func (b *Batch) HasPrefill() bool { return b.decode < b.T }

// heads are the KV heads of a segment whose attention a rank computes.
func (b *Batch) heads(s *Segment, rank int) topology.Range {
	if s.Prefill {
		return b.Place.Slices[rank].KVHeads
	}
	if s.Owner == rank {
		return topology.Range{Lo: 0, Hi: b.Dims.KVHeads}
	}
	return topology.Range{}
}

// decodeRows are the decode rows that a rank owns: contiguous by construction.
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

// rowRanges gives the prompt rows that each rank owns where rows are owned: an even
// cut, any cut gives the same bits.
func (b *Batch) rowRanges() []topology.Range {
	n := len(b.Place.Slices)
	shares := make([]float64, n)
	for i := range shares {
		shares[i] = 1
	}
	r := topology.Cut(b.T-b.decode, shares)
	for i := range r {
		r[i].Lo += b.decode
		r[i].Hi += b.decode
	}
	return r
}

// NextOp numbers the collectives of this micro-batch.
func (b *Batch) NextOp() uint64 {
	b.sequence++
	return uint64(collective.Op(b.MicroBatch, b.sequence))
}
