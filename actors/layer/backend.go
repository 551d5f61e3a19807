package layer

import (
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/topology"
)

// Backend holds the activations of a micro-batch and computes its stages. Processor is the CPU
// implementation. Data for the wire passes through host memory and is named by tiles. A stage, a run
// of stages and an exchange are one call each; no call is made per row or per token. The socket's
// executor makes all calls, one at a time. Weights must come from the backend's [Device].
type Backend interface {
	// Begin allocates room for the step of b and computes its rotations from positions. The following
	// calls belong to this step. The rows of b then change only with a call of Compact.
	Begin(b *Batch, rotations []*rotation.Table)
	// Compact reduces the step to the given rows after the batch has dropped the others. It moves
	// the residual stream, the rotations and, for decode rows, the keys and values that later
	// layers need.
	Compact(rows []topology.Range)
	// Embed fills the residual stream from the given row on with the embeddings of tokens. If the
	// embedding file changed during the call (model.Tensor.Unchanged), the rows may be wrong and the
	// caller must repeat it with checked. A checked call fails unless the bytes are the model's.
	Embed(e Held, row int, tokens []uint32, checked bool) error
	// Run computes runs of layers in order. On a single rank the runs cover all layers of the step,
	// which a device can capture as a graph. Between two runs, with no work of its own in flight, a backend
	// may call between unless it is nil: it runs the executor's other jobs. If between returns
	// false, the weights have been freed and Run must return at once.
	Run(runs []LayerRun, between func() (goOn bool))
	// Pack appends the values of tiles, row by row, to the slice to. Unpack copies packed values
	// into tiles.
	Pack(to []float32, tiles []Tile) []float32
	Unpack(from []float32, tiles []Tile)
	// LoadRows copies rows of the residual stream from blocks of Device.Arena, and StoreRows copies them there.
	// The rows follow one another in the blocks.
	LoadRows(rows topology.Range, blocks [][]byte)
	StoreRows(rows topology.Range, blocks [][]byte)
	// Close frees the memory of the activations, except that of Nodes and Total. No work is in flight. CloseReduced frees
	// that after Close, when no reduction reads or writes it. It may be called from any goroutine.
	Close()
	CloseReduced()
	// Nodes returns the tree nodes of projectUnits, (T, Hidden) each. Total is where the sum over
	// all ranks is stored: activation Sum, (T, Hidden).
	Nodes() [][]float32
	Total() []float32
	// Adapted returns the tree nodes of A x of projectUnits, for the rows with adapters, and where the
	// sum over all ranks is stored.
	Adapted() (nodes [][]float32, total []float32)
	// Logits computes this rank's columns of the logits for at most LogitRows rows. For each row it
	// copies the best token to the host, or the whole row on request.
	Logits(e Held, rows []LogitRow)
	// Keep appends the residual stream of rows to states on this device. With e not nil it appends
	// the final norm instead, which is the input of the head.
	Keep(to States, e Held, rows []int)
	// Hidden returns the final norm of a row, which is the input of the head, in host memory that is
	// valid until the next call.
	Hidden(e Held, row int) []float32
	// Join turns a residual stream of embeddings into the input of the multi-token-prediction layer.
	// states are the states of the preceding tokens, in the order of the rows.
	Join(m Held, states []StateRun)
}

// States are rows of (Hidden) numbers that stay on a device between steps.
type States interface {
	Len() int
	Drop(n int) // drops the oldest n rows
}

// StateRun is N rows of states, starting at First.
type StateRun struct {
	Of       States
	First, N int
}

// LogitRows is the maximum number of rows with logits in memory at once. Prompt log-probabilities
// request every row of a chunk, and a row of a large vocabulary takes 512 KiB.
const LogitRows = 64

// LogitRow is a row of a step whose logits are requested, and the results for it.
type LogitRow struct {
	Row         int
	Whole       bool // return all logits, not only the best
	Probability bool // also return the probability of the best token

	Best  int     // index of this rank's best token, relative to its first column
	Logit float32 // logit of the best token
	Share float32 // softmax probability of the best token among this rank's columns
	// Logits of a whole row, (Vocab), in the backend's host memory, valid until its next call of
	// Logits. Only this rank's columns are computed; the caller fills the others.
	Logits []float32
}

// Layer is the weights of a layer, or of SwiftKV's pass, in the form of a backend. The processor's
// are [Weights].
type Layer interface {
	Held
	Kind() Kind
}

// LayerRun is a run of operations of one layer without an exchange between them.
type LayerRun struct {
	Layer Layer
	Ops   []Op
}

// Kind is the properties of a layer that decide its schedule.
type Kind struct {
	Sparse      bool // has experts instead of a dense FFN
	KVComputed  bool // reads keys and values that SwiftKV's pass or an earlier layer has computed
	SwiftKVPass bool // is SwiftKV's pass, which computes those keys and values
	Caches      int  // of SwiftKV's pass: the number of caches that it fills
	Widths      int  // index in Dims.Widths
	VFromK      bool // computes no values: they follow from the keys

	Recurrent bool // has a recurrent state instead of attention
	Bare      bool // has no FFN
	SameNorm  bool // attention reads the norm that the layer before has read

	EndsPrompts bool // is the last layer with keys and values of its own: prompt rows without logits end with it
}

// Activation names a matrix of a micro-batch. Rows are tokens unless noted otherwise.
type Activation uint8

// Activations that cross the wire.
const (
	Residual           Activation = iota // (T, Hidden) the residual stream
	QKV                                  // (T, qkvWidth) queries, keys and values
	LaterKV                              // (T, kvWidth) keys and values of the later layers' caches
	Attended                             // (T, attnCols) outputs of heads
	Gate                                 // (T, FFN) input of the down projection
	Sum                                  // (T, Hidden) output of attention or FFN, before the residual sum
	QuantizedNorm                        // (T, Hidden) in quantized blocks
	QuantizedAttention                   // (T, attnCols) in quantized blocks
	QuantizedFFN                         // (T, FFN) in quantized blocks
	Latents                              // (T, downCols) latents of latent attention
	LatentMeans                          // (T, Heads*rank) attention outputs of latent attention
	ExpertGate                           // (pairs, FFN) of experts
	SharedGate                           // (T, Shared) of shared experts
	SharedSum                            // (T, Hidden) output of a dense FFN in a layer with experts
	DeltaIn                              // (T, deltaIn) q, k, v and z of the gated delta rule
	DeltaOut                             // (T, deltaOut) outputs of its heads
	HeadSquares                          // (T, Heads+KVHeads) sums of squares of queries and keys
)
