package engine

import (
	"context"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// Engine turns tokens into tokens. All methods may be called concurrently.
type Engine interface {
	// Submit hands over one sequence. On a nil error the request is accepted:
	// events arrive on the channel, and the channel is closed after the one
	// event whose Finish is not empty. Cancelling ctx ends the sequence within
	// one step and frees its cache; the engine must then stop sending (select
	// on ctx.Done and the send) and close the channel. The API receives
	// without waiting on the network, so a small buffer is enough.
	//
	// Typed refusals: ErrOverloaded, ErrNotReady, ErrTooLong, ErrInvalid.
	// r and its slices belong to the engine from here on; it must not write to
	// Prompt, which choices of the same prompt share.
	Submit(ctx context.Context, r *Request) (<-chan Event, error)
	// Unread reports that the client of a request (by ID) does not read its tokens, or that it does
	// again. An unread sequence gives its place to waiting ones. Unread must not block.
	Unread(id string, yes bool)
	// Cluster returns a snapshot, which the caller owns. Cluster must not block on a node.
	Cluster() wire.ClusterState
	// Ready is nil when a request sent now would be accepted.
	Ready() error
	// Health is nil only while steps can finish: a process that answers but
	// whose steps hang is not healthy. ErrDegraded: they can, so far.
	Health() error
}

// Request is one sequence: one choice of one prompt.
type Request struct {
	ID             string // unique, made by the API
	Model          string // first name of the model; "": the only one, or the first
	ClientID       string // x-request-id, for logs; not unique
	IdempotencyKey string // Idempotency-Key header, "" when absent
	Prompt         []int32
	MaxTokens      int  // >= 1; 0 with Pool
	Open           bool // MaxTokens may be lowered to what fits the cache memory
	Sampling       sampler.Params
	IgnoreEOS      bool
	StopTokens     []int32        // end the sequence besides the model's own EOS
	Pool           pooling.Method // not None: the last event has a vector of the prompt; MaxTokens is 0
	PromptLogprobs int            // -1: none; k: the k best besides the prompt's own token
	Policy         string         // KV cache policy, "" for the server's default
	Priority       int            // lower is sooner; 0 by default
	NoCache        bool           // neither look for the prompt in the prefix cache nor leave it there
	Salt           string         // shares the prefix cache with requests of the same salt only
	Tenant         string         // name of the key; requests of other keys share it only if the server is configured so
	Speculate      string         // how drafts are made, "" for the server's default
	Adapter        *Adapter       // nil: none

	// Context is the number of tokens at the prompt's beginning that are a fixed context; 0: none. They
	// are read and laid out apart from the other tokens. Hold: the whole prompt is a fixed context. Its
	// cache stays for requests that begin with it, until the request is cancelled.
	Context int
	Hold    bool

	// Session names a conversation of the tenant. When the request has all its tokens, its cache waits
	// for SessionTTL for a request of the session whose prompt begins with them. Context and Policy must
	// be the same. "": none.
	Session    string
	SessionTTL time.Duration

	// Emitted holds output tokens of an earlier run of this request: it continues
	// after them, and only the ones after them come as events.
	Emitted []int32
	// Accepted: the request was acknowledged before (a job), so a full queue or a
	// drain does not refuse it.
	Accepted bool
}

// Finish values of the last event of a sequence.
const (
	FinishStop      = "stop"      // EOS or a stop token; Token is that token
	FinishLength    = "length"    // MaxTokens or the context is used up
	FinishError     = "error"     // Err has the reason
	FinishCancelled = "cancelled" // the context was cancelled
)

// NoToken marks an event that carries no token.
const NoToken int32 = -1

// Event is one step of one sequence. With FinishStop the Token (unless NoToken)
// is the one that ended the sequence: counted and reported in logprobs, but not
// part of the text.
type Event struct {
	Token          int32
	Logprob        float32                // set when Sampling.Logprobs >= 0
	Top            []sampler.TokenLogprob // best first
	PromptLogprobs []PromptLogprob        // once, in the first event; one per prompt token
	Pooled         []float32              // with the last event, the vector of a prompt (Request.Pool)
	More           int                    // tokens of the same step that follow this one
	Cached         int                    // tokens of the prompt that were in a cache, and that no fault or preemption has had computed again
	Finish         string                 // "" until the last event
	Err            error                  // with FinishError
	Timings        *Timings               // with the last event; nil when not measured
	Drafts         *Drafts                // with the last event; nil: there were none

	Timed bool    // a SequenceTimer has set gap
	Gap   float64 // seconds, its part of the time between its step and the one before
}

// Drafts counts the drafts of one sequence, or of all.
type Drafts struct {
	Rows     uint64   // decode steps with drafts
	Drafted  uint64   // tokens
	Accepted uint64   // of these
	At       []uint64 // accepted as the first, second, ... of their step

	PerStep []DraftStep // those with drafts, in their order
}

// DraftStep is one decode step that had drafts.
type DraftStep struct{ Drafted, Accepted int }

// PromptLogprob is the log probability of a prompt token given those before it.
// The first token of a prompt has none: its entry is ignored.
type PromptLogprob struct {
	Logprob float32
	Top     []sampler.TokenLogprob
}

// Timings are intervals measured by one process's monotonic clock.
type Timings struct {
	Queue   time.Duration // accepted -> first step
	Prefill time.Duration // first step -> first token
	Decode  time.Duration // first token -> last token
	Steps   tracing.Steps // of the cluster during Decode, while there is a Tracer
}
