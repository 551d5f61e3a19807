package report

import (
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// Result is the result of a step for one sequence.
type Result struct {
	Seq     uint64
	Samples []sampler.Result // of each sampled row; in decode up to the first that differs from the next token of the row
	Prompt  []PromptLogprob  // in order of position
	Pooled  []float32        // the vector of a prompt, after its last token
	Drafts  []int32          // a draft of the tokens after the last of Samples
	Odds    []float32        // the probability of each in the draft model, given those before it
}

// PromptLogprob scores the prompt token at Position, given those before it.
type PromptLogprob struct {
	Position int
	Logprob  float32
	Top      []sampler.TokenLogprob
}

// Emit is one new output token.
type Emit struct {
	ID    string
	Index int // index of the output token
	// More is the number of output tokens of the same step that follow this one.
	More int
	// Cached is the number of prompt tokens that were in a cache, at each admission of the request.
	Cached int
	sampler.Result
}

// Scores are log probabilities of prompt tokens.
type Scores struct {
	ID     string
	Prompt []PromptLogprob
}

// Finish ends a request.
type Finish struct {
	ID      string
	Reason  string
	Code    string // with ReasonError
	Message string
	Prompt  int // tokens
	Output  int // tokens, including Spec.Emitted

	// In milliseconds of Tick. Started is the first admission, FirstToken the first Emit; -1: never.
	Arrived, Started, FirstToken, Ended int64
	Preempted                           int // number of times
	Speculated                          Speculated
	Verified                            []Verified
	Pooled                              []float32 // the vector of a prompt, with Spec.Pool
}

// Reject answers a Submit that is not accepted.
type Reject struct {
	ID         string
	Code       string
	Message    string
	RetryAfter int // seconds, with CodeOverloaded and CodeDraining
}

// Error makes a Reject an error that Submit can return.
func (r *Reject) Error() string { return "batcher: " + r.Code + ": " + r.Message }

// Broken reports that an epoch is over.
type Broken struct {
	Epoch  uint32
	Step   uint64
	Reason string
}

// Fault is a broken invariant.
type Fault struct {
	Kind    string // "replay", "ledger", "result", "placement"
	ID      string // of the request, if the fault concerns one
	Message string
}

// Speculated counts drafts and their results.
type Speculated struct {
	Lookups  uint64                     // lookups of drafts, also after short matches
	Rows     uint64                     // decode rows with drafts
	Drafted  uint64                     // tokens
	Accepted uint64                     // of Drafted
	At       [speculate.MaxDraft]uint64 // accepted as the first, second, ... of a row
	Texts    int64                      // bytes of indexes now
	Recent   int64                      // bytes of recent outputs now
}

// Count adds the outcome of one row.
func (c *Speculated) Count(drafted, accepted int) {
	c.Rows++
	c.Drafted += uint64(drafted)
	c.Accepted += uint64(accepted)
	for i := range accepted {
		c.At[i]++
	}
}

// Verified counts the drafts of one row.
type Verified struct{ Drafted, Accepted uint8 }

// PrefixTotals count tokens since the start.
type PrefixTotals struct {
	Queries  uint64 // of prompts that were looked up, at their first admission
	Hits     uint64 // portion of Queries that was found
	Evicted  uint64 // in blocks that were evicted
	Restored uint64 // in blocks that were read from disks
	Late     uint64 // number of disk requests that were too slow
	Answers  uint64 // in blocks of generated tokens that were kept
}

// Disk requests blocks of a text from all sockets: from their disks, or from the owner of an ended
// sequence. A DiskDone answers it.
type Disk struct {
	Number uint64
	Seq    uint64     // sequence whose owner has the rows of all heads, and commits those of Blocks; 0: read from disks
	Owner  int        // rank
	From   int        // number of the first block in its text
	Before plan.Key   // key of the block before the first
	Keys   []plan.Key // keys of the blocks
	Blocks []uint64   // their IDs from now on; empty: the sockets only return the number of blocks that they have
	Step   uint64     // a socket that has begun a later step ignores the request
	Millis int64      // time until the answer counts as late
}
