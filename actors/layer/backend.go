package layer

import "github.com/shoal-llm/shoal/topology"

// Backend is where the activations of a micro-batch lie and its stages are computed. The
// processor is one (Processor). What crosses the wire passes host memory, named as tiles; a
// stage, a run of them and an exchange are one call each, and none is made a row or a token.
// Calls come one at a time, from the socket's executor. Weights are those that the backend's
// [Device] holds.
type Backend interface {
	// Begin makes room for the step that b describes, and turns its positions into rotations.
	// The calls that follow are of this step; what b says of it may change with Leave alone.
	Begin(b *Batch, rotations []*Rotation)
	// Leave makes rows, which the batch describes no longer, those of the step one after the
	// other: their residual stream, rotations, and of decode rows what waits for later layers.
	Leave(rows []topology.Range)
	// Embed fills the residual stream of the rows from row on with the embeddings of tokens.
	// If the embedding's file was changed by then (model.Tensor.Unchanged), the rows may be
	// wrong and are filled again, checked: that fails when their bytes are not the model's.
	Embed(e Held, row int, tokens []uint32, checked bool) error
	// Run computes runs of layers, one after another. Where nothing is exchanged these are all
	// layers, which a device can capture as a graph. Between two runs a backend may call
	// between, unless that is nil, while no work of its own is under way: others compute
	// meanwhile, and after false it returns at once, for its weights are gone.
	Run(runs []LayerRun, between func() (goOn bool))
	// Pack is the values of tiles, row after row, in to or where there is room; Unpack puts
	// packed values where tiles are.
	Pack(to []float32, tiles []Tile) []float32
	Unpack(from []float32, tiles []Tile)
	// Nodes are the tree nodes that projectUnits left, (T, Hidden) each, and Total is where
	// their sum over all ranks is read, (T, Hidden): activation Sum.
	Nodes() [][]float32
	Total() []float32
	// Logits computes this rank's columns of the logits of at most LogitRows rows. The best token
	// of a row comes to the host, or the whole row where that is asked for.
	Logits(e Held, rows []LogitRow)
	// Keep appends the residual stream of rows to states of this device; with the ends e, not nil,
	// what the head reads of it, its norm.
	Keep(to States, e Held, rows []int)
	// Join makes a residual stream of embeddings what the layer of multi-token prediction reads.
	// The states of the tokens before them lie in runs, in the order of the rows.
	Join(m Held, states []StateRun)
}

// States are rows of (Hidden) numbers that a device keeps between steps.
type States interface {
	Len() int
	Drop(n int) // forgets the oldest n rows
}

// StateRun is N rows of states from First on.
type StateRun struct {
	Of       States
	First, N int
}

// LogitRows bounds the rows whose logits are in memory at once: prompt log-probabilities ask for
// every row of a chunk, and a row of a large vocabulary is half a megabyte.
const LogitRows = 64

// LogitRow is a row of a step whose logits are requested, and what was computed of it.
type LogitRow struct {
	Row   int
	Whole bool // the logits themselves are asked for, not the best
	Odds  bool // the odds of the best are asked for, too

	Best  int     // the best of this rank's columns, counted from the first of them
	Logit float32 // its logit
	Share float32 // its softmax among these columns
	// Logits of a whole row, (Vocab), in host memory of the backend until its next Logits. This
	// rank's columns are computed; the others are the caller's to fill.
	Logits []float32
}

// Layer is the weights of a layer, or of the pass ahead of some, as a backend holds them: those
// of the processor are [Weights].
type Layer interface {
	Held
	Kind() Kind
}

// LayerRun is a run of operations of a layer with no exchange between them.
type LayerRun struct {
	Layer Layer
	Ops   []Op
}

// Kind is what schedules tell apart of a layer.
type Kind struct {
	Sparse bool // it has experts
	Later  bool // its keys and values are there already
	Input  bool // it is no layer, but computes those
	Caches int  // how many caches they go to, of Input
}

// Activation names a matrix of a micro-batch. Rows are tokens but where it says otherwise.
type Activation uint8

// What crosses the wire.
const (
	Residual           Activation = iota // (T, Hidden) the residual stream
	QKV                                  // (T, qkvWidth) queries, keys and values
	LaterKV                              // (T, kvWidth) keys and values of the later layers' caches
	Attended                             // (T, attnCols) outputs of heads
	Gate                                 // (T, FFN) what the down projection reads
	Sum                                  // (T, Hidden) what attention and the FFN add
	QuantizedNorm                        // (T, Hidden) in blocks, as the next two
	QuantizedAttention                   // (T, attnCols)
	QuantizedFFN                         // (T, FFN)
	Latents                              // (T, downCols), latent attention's
	LatentMeans                          // (T, Heads*rank), likewise
	ExpertGate                           // (pairs, FFN) of experts
	SharedGate                           // (T, Shared) of shared experts
)
