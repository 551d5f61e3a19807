package layer

// Op is a computation of a layer. Schedules name operations; each backend has a table of its
// implementations. "This rank's" rows and columns are those of its topology.Slice.
type Op uint8

// The computations of a layer. X is the residual stream, Y the output of attention or FFN.
const (
	// Attention: norm, projections, residual sum.
	OpNormAttention      Op = iota // Norm = RMSNorm(X), all rows
	OpNormOwnedAttention           // RMSNorm of the rows that this rank owns, quantized
	OpProjectQKV                   // QKV = Wqkv . Norm, this rank's rows of the matrices, all tokens
	OpProjectOwnQKV                // QKV with whole matrices: this rank's decode rows, and its heads of all prompt rows
	OpSumSquares                   // sums of squares of this rank's heads, for norms over all heads
	OpAttend                       // RoPE, cache write and attention of this rank's heads into Attn
	OpProjectOut                   // Y = Wo . Attn, this rank's output rows, all tokens
	OpProjectOwnOut                // Y with the whole matrix, for the tokens that this rank owns
	OpAddAttention                 // X += Y, or with a norm after attention X += RMSNorm(Y), all rows
	OpAddOwnedAttention            // the same for the rows that this rank owns

	// Feed-forward network: norm, products, residual sum.
	OpNormFFN         // Norm = RMSNorm(X), all rows; nothing if the FFN reads attention's norm
	OpNormAllFFN      // the same, quantized
	OpAddNormFFN      // X += Y, or with a norm after attention X += RMSNorm(Y); then OpNormFFN
	OpAddNormOwnedFFN // OpAddOwnedAttention, then RMSNorm of the same rows, quantized
	OpGateUp          // act(gate)*up of this rank's columns, quantized in a quantized step
	OpProjectDown     // Y = Wdown . Gate, this rank's output rows, all tokens
	OpProjectUnits    // the tree nodes of Wdown . Gate over this rank's units, all tokens
	OpAdaptDown       // Y += B (s A Gate) of rows with adapters, after the sum over all ranks
	OpAdaptOwnedDown  // the same for the rows that this rank owns
	OpAddFFN          // X += Y + bias, or with a norm after the FFN X += RMSNorm(Y + bias), all rows
	OpAddOwnedFFN     // the same for the rows that this rank owns

	// Experts: replace OpGateUp and OpProjectDown.
	OpExpertsUp   // router, then weight*SiLU(gate)*up of this rank's columns of every chosen expert; shared experts without a weight
	OpExpertsDown // this rank's rows of Y: the shared experts, then a token's experts in ascending order

	// Latent attention: replaces the projections of queries, keys and values, and OpAttend.
	OpProjectLatents    // latents of queries and cache, and the shared key: this rank's rows of the matrix, all tokens
	OpProjectOwnLatents // the same with the whole matrix, for the tokens that this rank owns
	OpProjectHeads      // queries of heads from their latents, absorbed and rotated
	OpAttendLatents     // cache write, attention of this rank's heads over latents
	OpProjectValues     // values of heads from their attention outputs in latent space

	// The gated delta rule: replaces the projections of queries, keys and values, OpAttend and the
	// output projection.
	OpProjectDelta       // q, k, v and z: this rank's rows of the matrix, all tokens; its gates
	OpProjectOwnDelta    // the same with the whole matrix: this rank's decode rows, and its heads of all prompt rows
	OpDelta              // convolution, recurrence and gated norm of this rank's heads
	OpProjectDeltaOut    // Y = Wo . outputs of all heads, this rank's output rows, all tokens
	OpProjectOwnDeltaOut // Y with the whole matrix, for the tokens that this rank owns

	// SwiftKV's pass before the later layers.
	OpNormInput      // Norm = RMSNorm(X, SwiftKV.Norm), all rows
	OpNormOwnedInput // the same for the rows that this rank owns, quantized
	OpProjectKV      // keys and values of every later cache, this rank's rows of the matrices, all tokens
	OpProjectOwnKV   // the same with whole matrices: this rank's decode rows, and its heads of all prompt rows
	OpPutKV          // rotates the keys of this rank's heads; writes those of prompts to the caches, with their values

	Ops // number of operations
)

// Part is the category that an operation's time is counted under.
type Part uint8

// The parts of a step within its layers.
const (
	Projections Part = iota // of queries, keys, values and attention outputs, and their norm
	Attention               // rotation, cache writes, attention
	FFN                     // norm, feed-forward network or experts, residual
	Parts                   // number of parts
)

var ops = [Ops]struct {
	name string
	part Part
}{
	OpNormAttention:      {"norm-attention", Projections},
	OpNormOwnedAttention: {"norm-owned-attention", Projections},
	OpProjectQKV:         {"project-qkv", Projections},
	OpProjectOwnQKV:      {"project-own-qkv", Projections},
	OpSumSquares:         {"sum-squares", Projections},
	OpAttend:             {"attend", Attention},
	OpProjectOut:         {"project-out", Projections},
	OpProjectOwnOut:      {"project-own-out", Projections},
	OpAddAttention:       {"add-attention", Projections},
	OpAddOwnedAttention:  {"add-owned-attention", Projections},
	OpNormFFN:            {"norm-ffn", FFN},
	OpNormAllFFN:         {"norm-all-ffn", FFN},
	OpAddNormFFN:         {"add-norm-ffn", FFN},
	OpAddNormOwnedFFN:    {"add-norm-owned-ffn", FFN},
	OpGateUp:             {"gate-up", FFN},
	OpProjectDown:        {"project-down", FFN},
	OpProjectUnits:       {"project-units", FFN},
	OpAdaptDown:          {"adapt-down", FFN},
	OpAdaptOwnedDown:     {"adapt-owned-down", FFN},
	OpAddFFN:             {"add-ffn", FFN},
	OpAddOwnedFFN:        {"add-owned-ffn", FFN},
	OpExpertsUp:          {"experts-up", FFN},
	OpExpertsDown:        {"experts-down", FFN},
	OpProjectLatents:     {"project-latents", Projections},
	OpProjectOwnLatents:  {"project-own-latents", Projections},
	OpProjectHeads:       {"project-heads", Projections},
	OpAttendLatents:      {"attend-latents", Attention},
	OpProjectValues:      {"project-values", Projections},
	OpProjectDelta:       {"project-delta", Projections},
	OpProjectOwnDelta:    {"project-own-delta", Projections},
	OpDelta:              {"delta", Attention},
	OpProjectDeltaOut:    {"project-delta-out", Projections},
	OpProjectOwnDeltaOut: {"project-own-delta-out", Projections},
	OpNormInput:          {"norm-input", Projections},
	OpNormOwnedInput:     {"norm-owned-input", Projections},
	OpProjectKV:          {"project-kv", Projections},
	OpProjectOwnKV:       {"project-own-kv", Projections},
	OpPutKV:              {"put-kv", Attention},
}

func (o Op) String() string { return ops[o].name }

// Part returns the category that the operation's time is counted under.
func (o Op) Part() Part { return ops[o].part }

func (o Op) when(applies bool) Stage { return when(o, applies) }
