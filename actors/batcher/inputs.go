package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// Input is one of the types below, or an input of a module: EndSession, AdapterDone, DiskDone, PrefillDone,
// TakeDone, SavedDone.
type Input any

// Spec is one request. The state does not write to its slices.
type Spec struct {
	ID        string
	Prompt    []int32
	MaxTokens int // maximum output tokens; 0: only read the prompt
	// Open lowers MaxTokens to what fits the memory of the sockets, instead of a rejection.
	Open      bool
	Sampling  *sampler.Params
	Stop      []int32 // additional tokens that end the sequence, besides Config.EOS
	IgnoreEOS bool
	Policy    *kvcache.Policy
	Adapter   Adapter
	// Pool, unless None, ends the request with a vector of the prompt, in Finish, instead of tokens.
	// MaxTokens is 0. The prompt's cache is freed at once.
	Pool           pooling.Method
	PromptLogprobs int            // -1: none; k: score every prompt token, and report the k best
	NoCache        bool           // neither read nor fill the prefix cache
	Salt           string         // requests with different salts share nothing in the prefix cache
	Speculate      speculate.Mode // method of drafting; "": Config.Speculate
	Tenant         string         // requests of the same tenant may draft from each other's outputs
	Priority       int            // lower is sooner, -1000 to 1000
	Arrival        int64
	Deadline       int64 // in milliseconds of Tick; the request fails after it; 0: none

	// Context is the number of tokens at the beginning of the prompt that are a fixed context. Prefill
	// reads only these, or the sequence starts as a fork of a sequence that has read them. The other
	// tokens become decode rows. Under a policy that rebuilds by prefill, and without Session, the
	// sequence is cut instead, and shares the context's blocks. 0: the policy decides. With Hold the cache
	// stays after the first token, until Cancel, for later requests with the same beginning. If memory is
	// short it is preempted first; its prefill is repeated when there is memory again.
	Context int
	Hold    bool

	// Session names a conversation. When the request has all its tokens, its cache waits for
	// SessionMillis for a later request of the session whose prompt begins with them. The policy and
	// Context must be the same. "": none.
	Session       string
	SessionMillis int64

	// Emitted are earlier output tokens, for a job that continues after its coordinator died. The
	// sequence is rebuilt, and the output continues with the next index.
	Emitted []int32
	// Prefill is the number of a read for the decode group; 0: the request has another purpose. The request
	// ends with its prompt: its cache stays until Cancel, and Effects.Exports has the result.
	Prefill uint64

	// Accepted means that the request is an acknowledged job, so a full queue or a drain does not
	// reject it. Because no client waits for it, requests that arrive within Config.JobMillis after it
	// are admitted first.
	Accepted bool
}

// ResetPrefixCache empties the prefix cache. Running sequences keep their rows.
type ResetPrefixCache struct{}

// Submit adds a request. The reply is a Reject, or any number of Emits and exactly one Finish, now or
// later.
type Submit struct{ Spec Spec }

// Cancel ends a request. Its Finish comes at once; its memory is freed at the next step boundary. An
// unknown ID has no effect.
type Cancel struct{ ID string }

// Unread reports that the client of a request does not read its tokens, or with Yes false that it reads
// again. An unknown ID has no effect.
type Unread struct {
	ID  string
	Yes bool
}

// StepDone is the result of the step in flight. It has no effect if its epoch or step differs.
type StepDone struct {
	Epoch   uint32
	Step    uint64
	Results []Result     // one per row with samples or prompt log-probabilities
	Used    []int64      // measured cache bytes by rank after the step; nil: not measured
	Micros  int64        // from the plan to the results; 0: not measured
	Waited  int64        // microseconds that the slowest node waited for the others
	Spilled []plan.Spill // caches whose owners have freed the memory of their first blocks
	Lost    []uint64     // sequences whose files failed; their samples are ignored
}

// StepFailed reports that a step will have no result. Its epoch is over, and all running requests wait
// for the next Placed.
type StepFailed struct {
	Epoch  uint32
	Step   uint64
	Reason string
}

// Placed reports a working placement. Sockets are in rank order. Their caches are empty except for
// those in Held. It has no effect unless its epoch is newer.
type Placed struct {
	Epoch   uint32
	Sockets []Socket
	Held    []Held
	Disk    bool // all sockets store blocks of the prefix cache in files
	// StepTokens replaces Config.TokenBudget; 0: no change.
	StepTokens int
	Chunk      int // replaces Config.Chunk; 0: no change
	// MaxThreadShift is the largest plan.ThreadShift that the nodes can use.
	MaxThreadShift int
	// MaxMicroBatches is the largest plan.MicroBatches that the nodes can use.
	MaxMicroBatches int
	// Prefill means that the placement has a prefill group, which reads long prompts.
	Prefill bool
	// OnePass means that some sockets run a build that supports only one model pass per plan.
	OnePass bool
}

// Unplaced reports that there is no working placement.
type Unplaced struct{ Reason string }

// Tick sets the time, in milliseconds since a fixed moment. Time never goes back.
type Tick struct{ Now int64 }

// Drain rejects new requests. Accepted ones continue.
type Drain struct{}
