package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// Effects are the actions after a Step, to be performed in the order of the fields. Tokens are emitted
// (and logged, for a job) before the step that builds on them starts.
type Effects struct {
	// Faults are broken invariants. They are logged and counted, and should never occur.
	Faults []Fault
	// Rejects answer a Submit. The request does not exist afterwards.
	Rejects []Reject
	// Scores of prompt tokens: each position once, in order, before the request's first Emit of
	// this Step.
	Scores []Scores
	// Emits are new tokens. The indices of each request are 0, 1, 2, ... without gap or repetition,
	// even after preemptions and rebuilds.
	Emits []Emit
	// Finishes end requests. They are the last effect for their IDs.
	Finishes []Finish
	// Broken means that this epoch can do no more steps, and the placement authority must make a new
	// one. Nothing starts before the next Placed.
	Broken *Broken
	// Release lists sequences whose caches every socket must drop. It is used when no step starts that
	// could carry the list (plan.Plan.Release). The message may be lost or overtaken by a step, so
	// the next Plan repeats it.
	Release []uint64
	// Keep moves blocks of sequences in Release to the prefix cache. Like Release it is repeated.
	Keep []plan.Keep
	// Start is the next step. Exactly one StepDone or StepFailed answers it. Without an answer, Ticks
	// fail it after StepMillis.
	Start *plan.Plan
	// Evict lists blocks of the prefix cache that every socket must drop. As with Release, the message
	// may be lost, and the next Plan repeats it.
	Evict []uint64
	// Disk requests blocks from the sockets, also while steps are in flight.
	Disk []Disk
	// Adapters are LoRA adapters that the sockets must load, also while steps are in flight.
	Adapters []adapters.Load
	// Saved are orders for caches of idle sessions in files, also while steps run. A SavedDone answers each.
	Saved []saved.Order
	// Prefills are prompts for the prefill group. A PrefillDone answers each, unless it is in Drops.
	Prefills []Spec
	// Drops are numbers of reads that the prefill group must end.
	Drops []uint64
	// Takes are caches that the owners must take, also while steps are in flight. A TakeDone answers
	// each.
	Takes []prefillgroup.Take
	// Exports are the ends of reads, in the batcher of the prefill group.
	Exports []prefillgroup.Done
}

// Reasons for a Finish.
const (
	ReasonStop      = "stop"      // EOS or a stop token, which was emitted
	ReasonLength    = "length"    // MaxTokens or the context is used up
	ReasonCancelled = "cancelled" // by Cancel
	ReasonError     = "error"     // Code and Message have the reason
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
	CodeAdapter    = "adapter_failed"   // the nodes cannot load the LoRA adapter
	CodeDiverged   = "replay_diverged"
)
