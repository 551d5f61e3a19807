package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// Effects is what must happen after a Step, in the order of the fields. Tokens
// go out (and into the log of a job) before the step that builds on them starts.
type Effects struct {
	// Faults are broken invariants: to be logged and counted, never expected.
	Faults []Fault
	// Rejects answer a Submit; that request does not exist.
	Rejects []Reject
	// Scores of prompt tokens, each position once, in order, before the request's
	// first Emit of this Step.
	Scores []Scores
	// Emits are new tokens: for each request the indices are 0, 1, 2, ... without
	// gap or repetition, whatever was preempted or rebuilt meanwhile.
	Emits []Emit
	// Finishes end requests. Nothing follows for that ID.
	Finishes []Finish
	// Broken says that this epoch can do no more steps; the placement authority
	// must make a new one. Nothing is started before the next Placed.
	Broken *Broken
	// Release lists sequences whose cache every socket drops, when no step starts
	// that could carry the list (Plan.Release). It may be lost, or overtaken by a
	// step, so the next Plan repeats it.
	Release []uint64
	// Keep leaves blocks of sequences in Release to the prefix cache; like Release it is repeated.
	Keep []Keep
	// Start is the next step. Exactly one StepDone or StepFailed answers it; without
	// one, Ticks do after StepMillis.
	Start *Plan
	// Evict lists blocks of the prefix cache that every socket drops; like Release it may be
	// lost, and the next Plan repeats it.
	Evict []uint64
	// Disk asks the sockets' disks for blocks, whatever steps are in flight.
	Disk []Disk
}

// Plan is one step of the model over a batch. Sockets keep, release, drop replicas, evict, open,
// copy, then run.
// What they do not know any more they need not release.
type Plan struct {
	Epoch       uint32
	Step        uint64 // 1, 2, 3, ... across epochs
	Release     []uint64
	DropReplica []uint64 // sequences whose replica is dropped
	Keep        []Keep   // blocks of sequences in Release
	Evict       []uint64 // blocks of the prefix cache that are dropped
	DropSums    []uint64 // and those that stay without their sums
	Open        []Open
	Copy        []Copy
	Spill       []Spill
	Decode      []Decode
	Chunks      []Chunk
	Index       []Index // of prompts without rows in this step
	Passes      int     // over rows of Decode, each with the token that it drew before; 0: one
	Halvings    int     // of the threads that compute
}

// Index does so many pieces, after those From, of the work of a prompt's policy that need not wait
// for its end (kvcache.Clustering).
type Index struct {
	Seq    uint64
	From   int
	Pieces int
}

// Tokens is the number of rows of the step, or of one of its passes.
func (p *Plan) Tokens() int {
	n := 0
	for _, d := range p.Decode {
		n += len(d.Tokens)
	}
	for _, c := range p.Chunks {
		n += len(c.Tokens)
	}
	return n
}

// Open introduces a sequence to the sockets, in the step of its first chunk. A
// request gets a new Seq each time it is admitted.
type Open struct {
	Seq      uint64
	ID       string
	Owner    int // rank
	Policy   *kvcache.Policy
	Sampling *sampler.Params
	Read     int // tokens that prefill reads; the rest comes as decode rows
	Sampled  int // how many of them, at the end, are output already (rebuild)
	Tail     int // how many tokens of the prompt come as decode rows
	Reserve  int // tokens the owner's ledger covers at first: Read, or one more

	// Resume are the tokens in a cache that outlived its epoch: the owner has it,
	// and Replica (a rank, or -1) a copy of it; decode goes on. nil: from the start.
	Resume  []int32
	Replica int
	// Fork is the sequence whose cache this one begins with, as far as Read: Resume has its tokens.
	// 0: none.
	Fork uint64

	// Shared are the blocks of the prefix cache that the prompt begins with, and Prefix their
	// tokens; Read counts them, and the first Chunk follows them.
	Shared []uint64
	Prefix []int32
}

// Keep leaves what a sequence that has ended was told, as far as it fills blocks, to the
// prefix cache: blocks from number From on, 0: one that is there already.
type Keep struct {
	Seq    uint64
	From   int
	Blocks []uint64
	Keys   []Key // see Chunk
}

// Decode is a row for each of its tokens, of which the first is known and the others may be
// guesses: those from Position on go into the cache, and after each the next token is sampled,
// up to the first that is not the next of Tokens. Accepted of the tokens of the
// sequence's last Decode count, which Position follows; the others are rolled back.
type Decode struct {
	Seq      uint64
	Owner    int // rank
	Accepted int
	Position int
	Tokens   []int32
	Given    bool // the tokens are the prompt's, and so is the next: nothing is sampled
	Draft    int  // so many of what follows the newest token are to be guessed by a small model
}

// Chunk is a run of tokens that prefill reads.
type Chunk struct {
	Seq    uint64
	Owner  int // rank
	Start  int // position of the first token
	Tokens []int32
	Last   bool // the cache is handed to the owner, the prefill bytes are freed; pieces of Index may do it later
	Sample bool // a token is sampled after the last row
	// PromptLogprobs: -1 none; k: score the tokens at (Start, Start+len(Tokens)],
	// with the k best besides. Next is the one after the chunk, -1 at the end.
	PromptLogprobs int
	Next           int32

	// Save are blocks of the prompt, from number SaveFrom on, that the prefix cache keeps
	// when the step is done. One that it has already takes the place of the sequence's own.
	SaveFrom int
	Save     []uint64
	Keys     []Key // with disks: by which they keep them, after that of the block before
	Sums     bool  // up to the end of the last of Save, where the chunk ends, lie beside it from now on
}

// Emit is one new output token.
type Emit struct {
	ID    string
	Index int // of the output
	// More is the number of output tokens of the same step that follow this one.
	More int
	// Cached is how many of the prompt's tokens were in the prefix cache.
	Cached int
	sampler.Result
}

// Scores are log probabilities of prompt tokens.
type Scores struct {
	ID     string
	Prompt []PromptLogprob
}

// Reasons of a Finish.
const (
	ReasonStop      = "stop"      // EOS or a stop token, which was emitted
	ReasonLength    = "length"    // MaxTokens or the context is used up
	ReasonCancelled = "cancelled" // by Cancel
	ReasonError     = "error"     // Code and Message say why
)

// Codes of a Reject, or of a Finish with ReasonError. They are stable.
const (
	CodeInvalid    = "invalid_request"
	CodeDuplicate  = "duplicate_request"
	CodeContext    = "context_length_exceeded"
	CodeBudget     = "kv_budget_exceeded"
	CodeOverloaded = "overloaded"
	CodeDraining   = "draining"
	CodeUnserved   = "no_cluster"
	CodeDeadline   = "deadline_exceeded"
	CodeFailed     = "step_failed"
	CodeSampling   = "sampling_failed"  // the model gives no number
	CodeBanned     = "no_allowed_token" // the request bans every token
	CodeDiverged   = "replay_diverged"
)

// Finish ends a request.
type Finish struct {
	ID      string
	Reason  string
	Code    string // with ReasonError
	Message string
	Prompt  int // tokens
	Output  int // tokens emitted, those of an earlier life included

	// Milliseconds of Tick: Started is the first admission, FirstToken the first
	// Emit; -1: never.
	Arrived, Started, FirstToken, Ended int64
	Preempted                           int // times
	Speculated                          Speculated
	Verified                            []Verified
}

// Reject answers a Submit that is not taken.
type Reject struct {
	ID         string
	Code       string
	Message    string
	RetryAfter int // seconds, with CodeOverloaded and CodeDraining
}

// Broken says that an epoch is over.
type Broken struct {
	Epoch  uint32
	Step   uint64
	Reason string
}

// Fault is a broken invariant.
type Fault struct {
	Kind    string // "replay", "ledger", "result", "placement"
	ID      string // of the request, if one is concerned
	Message string
}
