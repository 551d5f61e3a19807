package kvcache

import "github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"

// Rows that move, see package rowblock.
type (
	RowBlock  = rowblock.Block
	Plane     = rowblock.Plane
	RowShape  = rowblock.Shape
	RowShaper = rowblock.Shaper
	RowSource = rowblock.Source
	RowSink   = rowblock.Sink
	rowsAt    = rowblock.Part
)

// The planes that caches have.
const (
	PlanePositions = rowblock.Positions
	PlaneNumbers   = rowblock.Numbers
	PlaneRows      = rowblock.Rows
	PlaneQueries   = rowblock.Queries
	PlaneIndex     = rowblock.Index
	PlaneStaged    = rowblock.Staged
	PlaneBlocks    = rowblock.Blocks
	PlanePages     = rowblock.Pages
	PlaneState     = rowblock.State
	PlaneRecords   = rowblock.Records

	RowBlockHeader = rowblock.HeaderBytes
)

// ErrRows means that rows from another socket do not fit the cache.
var ErrRows = rowblock.Err

// ParseRowBlock reads the header at the start of in.
func ParseRowBlock(in []byte) (RowBlock, error) { return rowblock.Parse(in) }
