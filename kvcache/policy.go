package kvcache

import (
	"shoal/tensor"
)

// Policy is the rule by which a sequence keeps, writes and reads its slots. It
// is a pure value: the same arguments give the same answer on every socket, or
// a rebuilt sequence would not give the same bits.
//
// A new policy is one file with this interface, one entry in the table of
// [Parse] and one row in the table of the tests.
type Policy interface {
	// Name is the word before the colon: "full", "streaming".
	Name() string
	// Spec is the canonical form with all parameters; Parse(Spec()) is the same policy.
	Spec() string
	// Needs declares what the socket must provide beyond keys and values.
	Needs() Needs
	// Identity says that every token stays in the slot of its position. Then the
	// prefill blocks become the resident blocks, and a lost cache is rebuilt by
	// prefill of the prompt and of what was generated. Other policies rebuild by
	// prefill of the prompt and a replay through Write, which evicts as before.
	Identity() bool
	// Slots is the number of slots per layer and head that a sequence spans once
	// `tokens` tokens were read or generated, `prompt` of which were there at the
	// end of prefill; tokens >= prompt. It never falls as tokens grow.
	Slots(prompt, tokens int) int
	// Keep says at the end of prefill which of the prompt's tokens one head of
	// one layer keeps: Positions has length Slots(prompt, prompt).
	Keep(e *Evidence) Kept
	// Write is the slot of the token at position pos, below Slots(h.Prompt, pos+1).
	// What the slot held is evicted; that happens only when Slots does not grow with
	// the token. Positions come in order, without gaps.
	Write(h *Head, pos int) int
	// Read narrows the slots that a query (q, [group][KDim], after RoPE) attends
	// to: a bit per slot in mask, which has room for them. nil means every slot
	// that holds a token.
	Read(h *Head, q []float32, mask []uint64) []uint64
}

// Observer is the part of a policy with Needs.DecodeAttention (H2O, TOVA): after
// a step it updates h.Scores from the attention that the step's query paid to
// each slot, summed over the query heads of the group.
type Observer interface {
	Observe(h *Head, attention []float32)
}

// Runner is the part of a policy whose slots do not depend on scores: the tokens from
// pos on, m at most, take n successive slots from slot on, as Write would have it one by
// one. n is at least 1.
type Runner interface {
	Run(pos, m int) (slot, n int)
}

// Needs is what a policy asks of the socket.
type Needs struct {
	// Window is the length of the observation window: the queries of the last
	// Window prompt tokens are given to Keep. 0: none.
	Window int
	// PromptAttention: the attention that each prompt token received, summed over
	// all queries of the prompt, is given to Keep.
	PromptAttention bool
	// DecodeAttention: attention over the slots is observed at every decode step,
	// and slots carry a score.
	DecodeAttention bool
	// PreRoPEKeys: keys are stored before RoPE, and rotated when they are read.
	PreRoPEKeys bool
	// CachePositions: keys are read at their positions within the cache, see Relative.
	CachePositions bool
	// HalfKeys: rotate_half of every key lies beside the keys (EQUIP).
	HalfKeys bool
	// ReadQueries: Read looks at the query, so it runs per query and head.
	ReadQueries bool
}

// Evidence is what Keep may look at, for one head of one layer.
type Evidence struct {
	Layer, Head int
	Prompt      int // tokens in the prompt

	// Queries are those of the observation window, [window][group][KDim] after
	// RoPE; window = min(Needs.Window, Prompt). Scale multiplies a score.
	Queries []float32
	Group   int
	Scale   float32
	// Votes, of latent attention instead of Queries: what the window's queries pay to
	// each prompt token, summed over them and all query heads, [Prompt].
	Votes []float32
	// Attention received by each prompt token, [Prompt]; nil unless asked for.
	Attention []float32
	// votes are windowVotes of `voted` queries, when Vote was called.
	votes []float32
	voted int

	// Layout and Blocks give the keys of the prompt: slot = position.
	Layout tensor.KVLayout
	Blocks [][]byte
}

// Kept is the answer of Keep.
type Kept struct {
	Positions []int32   // [slots] the prompt position that goes into each slot, -1: none
	Scores    []float32 // [slots] the first scores, for Needs.DecodeAttention; else nil
}

// Head is one head of one layer as a policy sees it. Policies read it; only
// Observe changes Scores.
type Head struct {
	Layer, Index int       // Index: the KV head in the model
	Prompt       int       // tokens at the end of prefill
	Tokens       int       // committed: tokens from this position on belong to the running step
	Positions    []int32   // [slots] true position of the token in each slot, -1: none; nil: slot = position
	Scores       []float32 // [slots], for Needs.DecodeAttention
}
