package machine

import (
	"fmt"
	"iter"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/topology"
)

// EffectKind is an operation on the caches of one sequence, or on a block of the prefix cache.
type EffectKind uint8

const (
	DoCommit        EffectKind = iota // Tokens of the cache, and of its replica, count; later ones are rolled back
	DoRelease                         // all stores are freed
	DoDropReplica                     // the replica is freed
	DoResume                          // the sequence continues with the cache that was kept; Tokens count
	DoOpen                            // the sequence begins
	DoReplicate                       // the replica on Rank begins, with room for Tokens
	DoReservePrompt                   // room for the prompt up to Tokens
	DoOpenCache                       // the owner's cache begins, for the hand-over
	DoReserveCache                    // room for the cache, and the replica on this socket, up to Tokens
	DoEvict                           // Block leaves the prefix cache
	DoKeep                            // block number Tokens of the cache becomes the prefix cache's Block
	DoFork                            // the sequence begins with the cache of Open.Fork
	DoSpill                           // the rows of the first Tokens blocks of the cache move to a file while steps run
	DoDropExtras                      // the attention sums and the snapshot of Block are freed
	DoReserveStates                   // room for a copy of the recurrent states
	DoDropStates                      // that copy is freed
	DoKeepStates                      // that copy, which is after block number Tokens of the cache, becomes the snapshot of Block
	DoTake                            // the sequence takes the cache of Open.Fork, which ends; Tokens count
	DoEnter                           // Layers read the prompt from position Tokens on
)

var doNames = [...]string{"commit", "release", "drop replica", "resume", "open", "replicate", "reserve prompt", "open cache",
	"reserve cache", "evict", "keep", "fork", "spill", "drop sums", "reserve copy", "drop copy", "keep copy", "take", "enter"}

func (d EffectKind) String() string { return doNames[d] }

// Effect is one operation. Effects are performed in order. DoCommit, DoKeep, DoRelease,
// DoDropReplica, DoDropStates, DoKeepStates, DoEvict, DoDropExtras and DoResume come before all that may lack memory.
type Effect struct {
	Do     EffectKind
	Seq    uint64
	Tokens int
	Copy   int // of Commit: the recurrent states after this number of tokens are copied; 0: none
	Rank   int
	Block  uint64
	Keys   []plan.Key     // of Keep: the key of the block before, and the block's own
	Open   *plan.Open     // of Open, Fork and Resume
	Layers topology.Range // of Enter
}

func (e Effect) String() string {
	switch e.Do {
	case DoFork, DoTake:
		return fmt.Sprintf("%v %d from %d", e.Do, e.Seq, e.Open.Fork)
	case DoRelease, DoDropReplica, DoOpen, DoOpenCache, DoReserveStates, DoDropStates:
		return fmt.Sprintf("%v %d", e.Do, e.Seq)
	case DoEvict, DoDropExtras:
		return fmt.Sprintf("%v block %d", e.Do, e.Block)
	case DoCommit:
		if e.Copy > 0 {
			return fmt.Sprintf("%v %d: %d tokens, copy after %d", e.Do, e.Seq, e.Tokens, e.Copy)
		}
	case DoKeepStates:
		return fmt.Sprintf("%v of %d after block %d with block %d", e.Do, e.Seq, e.Tokens, e.Block)
	case DoKeep:
		return fmt.Sprintf("%v block %d of %d as block %d", e.Do, e.Tokens, e.Seq, e.Block)
	case DoSpill:
		return fmt.Sprintf("%v %d: %d blocks", e.Do, e.Seq, e.Tokens)
	case DoEnter:
		return fmt.Sprintf("%v layers [%d,%d) of %d: from token %d", e.Do, e.Layers.Lo, e.Layers.Hi, e.Seq, e.Tokens)
	case DoReplicate:
		return fmt.Sprintf("%v %d on %d: %d tokens", e.Do, e.Seq, e.Rank, e.Tokens)
	}
	return fmt.Sprintf("%v %d: %d tokens", e.Do, e.Seq, e.Tokens)
}

// Wanted is a row of a step whose logits are requested.
type Wanted struct {
	Run, Row int   // the run, and the row within it
	Position int   // of the token that the logits predict
	Sample   bool  // sample a token from them
	Score    int32 // without Sample: report the log-probability of this prompt token
	Top      int   // also report this number of best tokens
}

// Copy is a cache that goes whole from its owner to its replica.
type Copy struct {
	Seq    uint64
	Tokens int // in the cache
	Rows   int // that the step will add
}

// Work is the work of one plan on this socket. The socket carries out First, then the
// copies, the layers, the head for the wanted rows, the transfer of decoded rows to
// replicas, and the hand-over of complete prompts. Every rank derives the same
// collectives from it.
type Work struct {
	plan.Plan
	First  []Effect
	Copies []Copy
	Runs   []plan.Run // those of Decode, then those of Chunks, in the same memory
}

// Wanted returns the rows whose logits are requested, of the step or of its current pass.
func (w *Work) Wanted() iter.Seq[Wanted] {
	return func(yield func(Wanted) bool) {
		for i := range w.Runs {
			if !wanted(&w.Runs[i], i, yield) {
				return
			}
		}
	}
}

// wanted yields the requested rows of one run.
func wanted(r *plan.Run, run int, yield func(Wanted) bool) bool {
	n := len(r.Tokens)
	if r.PromptLogprobs >= 0 {
		for i := range n {
			token := r.Next
			if i < n-1 {
				token = r.Tokens[i+1]
			}
			if token != plan.None && !yield(Wanted{Run: run, Row: i, Position: r.Start + i + 1, Score: token, Top: r.PromptLogprobs}) {
				return false
			}
		}
	}
	if !r.Sample {
		return true
	}
	first := r.Known
	if r.Prefill {
		first = n - 1
	}
	for i := first; i < n; i++ {
		if !yield(Wanted{Run: run, Row: i, Position: r.Start + i + 1, Sample: true}) {
			return false
		}
	}
	return true
}

// NextPass makes the runs those of the next pass: each has the token that it sampled.
func (w *Work) NextPass(sampled func(*plan.Run) int32) {
	for i := range w.Runs {
		r := &w.Runs[i]
		r.Start, r.Tokens = r.Start+1, []int32{sampled(r)}
	}
}
