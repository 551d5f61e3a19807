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
	// Run computes operations of a layer, one after another.
	Run(l Layer, ops []Op)
	// Pack is the values of tiles, row after row, in to or where there is room; Unpack puts
	// packed values where tiles are.
	Pack(to []float32, tiles []Tile) []float32
	Unpack(from []float32, tiles []Tile)
	// Nodes are the tree nodes that projectUnits left, (T, Hidden) each, and Total is where
	// their sum over all ranks is read, (T, Hidden): activation Sum.
	Nodes() [][]float32
	Total() []float32
	// Logits computes this rank's columns of the logits of rows, out (len(rows), vocab), and
	// of those with Best the index of the largest among these columns, and, where odds are
	// asked for (else nil), its softmax among them.
	Logits(e Held, rows []LogitRow, out []float32, vocab int, bests []int, odds []float32)
	// States are what the head reads of rows, (rows, Hidden). Join makes a residual stream of
	// embeddings what the layer of multi-token prediction reads, beside the states before them.
	States(e Held, rows topology.Range) []float32
	Join(m Held, states []float32)
}

// Layer is the weights of a layer, or of the pass ahead of some, as a backend holds them: those
// of the processor are [Weights].
type Layer interface {
	Held
	Kind() Kind
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
