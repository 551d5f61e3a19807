// Package settings is the configuration of the batcher.
package settings

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/batcher/threads"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// Config is the configuration of the state. Set Geometry and ContextLimit, then call Defaults and
// Validate.
type Config struct {
	Geometry     kvcache.Geometry // of the model's cache
	ContextLimit int              // prompt and output tokens of one sequence together
	EOS          []int32          // end a sequence unless it ignores them

	// Whole means that attention is not causal: one run reads a whole text. Every request ends with a
	// vector, and has at most TokenBudget tokens. There is no prefix cache, and Chunk is TokenBudget.
	Whole bool
	// Headless means that the model has no output head, so every request ends with a vector.
	Headless bool

	// Hidden is the width of the residual stream; 0: the model cannot read prompts layer by layer.
	// Prefill is how prompts are read: booking.Auto (the default), Layers or Chunks.
	Hidden  int
	Prefill string

	TokenBudget   int            // tokens in one step, decode rows and chunks together; 512
	Chunk         int            // prompt tokens of one sequence in one step; 256, at most TokenBudget
	MaxRunning    int            // sequences with memory at once; 64, below TokenBudget so that prefill never stalls
	Replicas      int            // copies of each decoding cache on other sockets, 0 or 1, in memory that is otherwise unused
	NoPrefixCache bool           // disables the prefix cache
	Identity      string         // identifies everything that cache rows depend on, except tokens: model, weights, types, arithmetic
	Speculate     speculate.Mode // for requests that name no mode; off
	// SpeculateBytes limits the indexes of texts for drafts, and the recent outputs; 64 MiB.
	// SpeculateRecent selects the outputs that a request may draft from: those of its tenant (key,
	// the default), of all tenants (shared), or none (off).
	SpeculateBytes  int64
	SpeculateRecent string
	SpeculateRows   int // a step with more sequences has no drafts; 32
	// DecodeSteps is the maximum number of model passes in a decode-only step; 1. StepTargetMillis
	// is about the maximum time of such a step, because new requests wait for its end; 50.
	DecodeSteps      int
	StepTargetMillis int64
	// TrialRounds is the number of times that each thread count is tried for a kind of steps; 8.
	TrialRounds int
	// MicroBatches is plan.MicroBatches of every step, at most the number that the nodes support; 0: chosen
	// for each kind of steps.
	MicroBatches int
	// Guess is for tests. It returns the tokens after a position, which are always tried as drafts.
	Guess func(id string, position int) []int32

	// PrefillHere is the maximum number of unread tokens of a prompt that this group reads itself if the
	// placement has a prefill group; 256.
	PrefillHere int

	MaxWaiting int // maximum requests in the queue; further ones are rejected; 1024

	IdleMillis     int64 // time until the cache of an idle session is written to a file, earlier if memory is short; 1000
	DiskMillis     int64 // maximum time that a request waits for the disk tier; 2000
	JobMillis      int64 // requests that arrive within this time after a job are admitted before it; 60 000
	PriorityMillis int64 // waiting time that equals one level of priority; 10 000
	StepMillis     int64 // a step without a result within this time breaks its epoch; 30 000
	UnservedMillis int64 // a request that no placement can take fails after this time; 120 000
	MaxFailures    int   // a request ends after this many failed steps without a new token; 8
}

// Defaults fills fields that are zero.
func (c *Config) Defaults() {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	millis := func(field *int64, value int64) {
		if *field == 0 {
			*field = value
		}
	}
	c.NoPrefixCache = c.NoPrefixCache || c.Whole
	set(&c.TokenBudget, 512)
	if c.Whole {
		c.Chunk = c.TokenBudget
	}
	set(&c.Chunk, min(256, c.TokenBudget))
	set(&c.MaxRunning, min(64, c.TokenBudget-1))
	set(&c.MaxWaiting, 1024)
	set(&c.PrefillHere, 256)
	set(&c.MaxFailures, 8)
	set(&c.SpeculateRows, 32)
	set(&c.DecodeSteps, 1)
	set(&c.TrialRounds, threads.Rounds)
	millis(&c.StepTargetMillis, 50)
	millis(&c.SpeculateBytes, 64<<20)
	if c.Prefill == "" {
		c.Prefill = booking.Auto
	}
	if c.Speculate == "" {
		c.Speculate = speculate.Off
	}
	millis(&c.DiskMillis, 2000)
	millis(&c.IdleMillis, 1000)
	millis(&c.JobMillis, 60_000)
	millis(&c.PriorityMillis, 10_000)
	millis(&c.StepMillis, 30_000)
	millis(&c.UnservedMillis, 120_000)
}

// ErrConfig means that a Config is invalid.
var ErrConfig = errors.New("batcher: bad configuration")

// Validate returns an error for the first invalid field.
func (c *Config) Validate() error {
	switch {
	case c.Geometry.Layers < 1 || c.Geometry.KVHeads < 1:
		return fmt.Errorf("%w: the cache has %d layers and %d KV heads", ErrConfig, c.Geometry.Layers, c.Geometry.KVHeads)
	case c.ContextLimit < 1:
		return fmt.Errorf("%w: context limit %d must be at least 1", ErrConfig, c.ContextLimit)
	case c.TokenBudget < 2:
		return fmt.Errorf("%w: token budget %d must be at least 2", ErrConfig, c.TokenBudget)
	case c.Chunk < 1 || c.Chunk > c.TokenBudget:
		return fmt.Errorf("%w: chunk %d must be from 1 to the token budget %d", ErrConfig, c.Chunk, c.TokenBudget)
	case c.MaxRunning < 1 || c.MaxRunning >= c.TokenBudget:
		return fmt.Errorf("%w: %d running sequences must be at least 1 and below the token budget %d, so that a step of decode rows has room "+
			"for a prompt", ErrConfig, c.MaxRunning, c.TokenBudget)
	case c.MaxWaiting < 1 || c.MaxFailures < 1 || c.PrefillHere < 1:
		return fmt.Errorf("%w: max waiting %d, max failures %d and tokens to read here %d must be at least 1", ErrConfig,
			c.MaxWaiting, c.MaxFailures, c.PrefillHere)
	case c.Hidden < 0 || c.Prefill != booking.Auto && c.Prefill != booking.Layers && c.Prefill != booking.Chunks:
		return fmt.Errorf("%w: prefill %q with a residual stream of width %d: it is %s, %s or %s", ErrConfig, c.Prefill, c.Hidden,
			booking.Auto, booking.Layers, booking.Chunks)
	case c.DecodeSteps < 1 || c.DecodeSteps > 1+speculate.MaxDraft:
		return fmt.Errorf("%w: %d tokens of each sequence in a step must be from 1 to %d", ErrConfig, c.DecodeSteps, 1+speculate.MaxDraft)
	case c.TrialRounds < 2:
		return fmt.Errorf("%w: %d rounds in which numbers of threads are tried must be at least 2", ErrConfig, c.TrialRounds)
	case c.MicroBatches < 0 || c.MicroBatches > plan.MaxMicroBatches:
		return fmt.Errorf("%w: %d micro-batches must be from 1 to %d, or 0 to choose", ErrConfig, c.MicroBatches, plan.MaxMicroBatches)
	case c.Replicas < 0 || c.Replicas > 1:
		return fmt.Errorf("%w: %d replicas must be 0 or 1", ErrConfig, c.Replicas)
	case c.IdleMillis < 1:
		return fmt.Errorf("%w: %d ms until idle caches are written to files must be at least 1", ErrConfig, c.IdleMillis)
	case c.StepTargetMillis < 1 || c.DiskMillis < 1 || c.JobMillis < 1 || c.PriorityMillis < 1 || c.StepMillis < 1 || c.UnservedMillis < 1:
		return fmt.Errorf("%w: step target %d ms, disk %d ms, job %d ms, priority %d ms, step %d ms and unserved %d ms must be positive",
			ErrConfig, c.StepTargetMillis, c.DiskMillis, c.JobMillis, c.PriorityMillis, c.StepMillis, c.UnservedMillis)
	}
	return nil
}
