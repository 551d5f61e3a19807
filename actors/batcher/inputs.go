package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Input is one of Submit, Cancel, Unread, StepDone, StepFailed, Placed, Unplaced, Tick, Drain.
type Input interface{ input() }

// Spec is one request. The state does not write to its slices.
type Spec struct {
	ID             string
	Prompt         []int32
	MaxTokens      int // output tokens at most; 0: only read the prompt
	Sampling       *sampler.Params
	Stop           []int32 // end the sequence, besides Config.EOS
	IgnoreEOS      bool
	Policy         *kvcache.Policy
	PromptLogprobs int            // -1: none; k: score every prompt token, with the k best besides
	NoCache        bool           // neither look for the prompt in the prefix cache nor leave it there
	Salt           string         // requests of different salts share nothing in the prefix cache
	Speculate      speculate.Mode // how drafts are made; "": as Config says
	Tenant         string         // whose recent outputs may guess for it, and who learns from its own
	Priority       int            // lower is sooner, -1000 to 1000
	Arrival        int64
	Deadline       int64 // milliseconds of Tick at which it fails; 0: none

	// Context is how many tokens at the prompt's beginning are a fixed context: prefill reads them
	// alone, or the sequence begins as a fork of one that has; the others come as decode rows. 0:
	// as the policy has it. Hold: the cache stays, after the first token, until Cancel, for those
	// to come that begin with it; when memory is short it is the first to go, and is read again
	// when there is room.
	Context int
	Hold    bool

	// Emitted are output tokens of an earlier life (a job taken over after the
	// coordinator died): the sequence is rebuilt, and goes on with the next index.
	Emitted []int32
	// Accepted: the request is a job, acknowledged before, so a full queue or a drain
	// does not refuse it. Nobody looks on: it lets others pass, for Config.JobMillis.
	Accepted bool
}

// ResetPrefixCache empties the prefix cache; running sequences keep what they hold.
type ResetPrefixCache struct{}

// Submit brings a request. The answer is a Reject, or any number of Emits and
// exactly one Finish, now or later.
type Submit struct{ Spec Spec }

// Cancel ends a request: its Finish comes at once, its memory is freed at the
// next step boundary. An unknown ID has no effect.
type Cancel struct{ ID string }

// Unread says that the reader of a request does not take its tokens, or, with Yes
// false, that it does again. An unknown ID has no effect.
type Unread struct {
	ID  string
	Yes bool
}

// StepDone is the result of the step in flight. One of another epoch or step has
// no effect.
type StepDone struct {
	Epoch   uint32
	Step    uint64
	Results []Result     // one for each row that wants sampling or prompt logprobs
	Used    []int64      // measured cache bytes by rank after the step; nil: not measured
	Micros  int64        // from the plan to the results; 0: not measured
	Spilled []plan.Spill // caches whose owners have given up the memory of their first blocks
	Lost    []uint64     // sequences whose files have failed: what was drawn of them does not count
}

// Result is what one sequence got from a step.
type Result struct {
	Seq     uint64
	Samples []sampler.Result // for each row after which the plan samples; of decode up to the first that is not the next token of the row
	Prompt  []PromptLogprob  // in order of position
	Drafts  []int32          // what a small model guesses to follow the last of Samples
	Odds    []float32        // how likely it thinks each is after those before it
}

// PromptLogprob scores the prompt token at Position, given those before it.
type PromptLogprob struct {
	Position int
	Logprob  float32
	Top      []sampler.TokenLogprob
}

// StepFailed says that a step will give no result. Its epoch is over: all that
// ran waits for the next Placed.
type StepFailed struct {
	Epoch  uint32
	Step   uint64
	Reason string
}

// Socket is one rank of a placement.
type Socket struct {
	ID      string
	Budget  int64       // bytes for the cache
	Heads   tensor.Span // KV heads (latent attention: units of query heads) it reads prompts for
	Scratch int64       // bytes of files for rows of sequences; 0: it has none
}

// Placed says that a cluster of an epoch works; Sockets in rank order. Their
// caches are empty but for what Held lists. An epoch that is not newer has no effect.
type Placed struct {
	Epoch   uint32
	Sockets []Socket
	Held    []Held
	Disk    bool // all keep blocks of the prefix cache in files
	Chunk   int  // takes the place of Config.Chunk; 0: what there is stays
	// MaxThreadShift is the largest plan.ThreadShift that the nodes can use.
	MaxThreadShift int
	// OnePass: some sockets are of a build that runs one pass of the model for a plan.
	OnePass bool
}

// Unplaced says that no cluster works now.
type Unplaced struct{ Reason string }

// Tick tells the time in milliseconds since any fixed moment. It never runs back.
type Tick struct{ Now int64 }

// Drain stops taking new requests; those that are there go on.
type Drain struct{}

func (ResetPrefixCache) input() {}

func (Submit) input()     {}
func (Cancel) input()     {}
func (Unread) input()     {}
func (StepDone) input()   {}
func (StepFailed) input() {}
func (Placed) input()     {}
func (Unplaced) input()   {}
func (Tick) input()       {}
func (Drain) input()      {}
