package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/proto"
)

// Do is what a socket does with its stores of one sequence.
type Do uint8

const (
	DoCommit        Do = iota // Tokens of the cache, and of its replica, count; those behind are rolled back
	DoRelease                 // all stores are freed
	DoDropReplica             // the replica is
	DoResume                  // the kept cache goes on as Open says; Tokens count
	DoOpen                    // the sequence begins
	DoReplicate               // the replica on Rank begins, with room for Tokens
	DoReservePrompt           // room for the prompt up to Tokens
	DoOpenCache               // the owner's cache begins, for the hand-over
	DoReserveCache            // room for the cache, and the replica on this socket, up to Tokens
	DoEvict                   // a block of the prefix cache goes, by its number Block
	DoKeep                    // Block number Tokens of the cache is the prefix cache's Block too
	DoFork                    // the sequence begins with another's cache, as Open says
	DoSpill                   // the rows of the first Tokens blocks of the cache go to a file, behind what runs
	DoDropSums                // what lies beside Block for policies that sum attention goes
)

var doNames = [...]string{"commit", "release", "drop replica", "resume", "open", "replicate", "reserve prompt", "open cache", "reserve cache", "evict", "keep", "fork", "spill", "drop sums"}

func (d Do) String() string { return doNames[d] }

// Effect is one thing to do. Effects are carried out in order; DoCommit,
// DoKeep, DoRelease, DoDropReplica, DoEvict, DoDropSums and DoResume come before all that may lack memory.
type Effect struct {
	Do     Do
	Seq    uint64
	Tokens int
	Rank   int
	Block  uint64
	Keys   []byte      // of Keep, as in proto.Chunk: before the block, and its own
	Open   *proto.Open // of Open, Fork and Resume
}

func (e Effect) String() string {
	switch e.Do {
	case DoFork:
		return fmt.Sprintf("%v %d from %d", e.Do, e.Seq, e.Open.Fork)
	case DoRelease, DoDropReplica, DoOpen, DoOpenCache:
		return fmt.Sprintf("%v %d", e.Do, e.Seq)
	case DoEvict, DoDropSums:
		return fmt.Sprintf("%v block %d", e.Do, e.Block)
	case DoKeep:
		return fmt.Sprintf("%v block %d of %d as block %d", e.Do, e.Tokens, e.Seq, e.Block)
	case DoSpill:
		return fmt.Sprintf("%v %d: %d blocks", e.Do, e.Seq, e.Tokens)
	case DoReplicate:
		return fmt.Sprintf("%v %d on %d: %d tokens", e.Do, e.Seq, e.Rank, e.Tokens)
	}
	return fmt.Sprintf("%v %d: %d tokens", e.Do, e.Seq, e.Tokens)
}

// Run is a run of tokens of one sequence in a step.
type Run struct {
	Seq     uint64
	Owner   int // rank
	Replica int // rank that the rows of decode go to as well, none
	Start   int // position of the first token
	Tokens  []uint32
	Prefill bool
	Last    bool // of the prompt: the cache is handed to the owner
	Draft   int  // how many tokens of what follows the newest one are to be guessed

	// Save are numbers of blocks of the prompt, from the SaveFrom-th on, for the prefix cache.
	SaveFrom int
	Save     []uint64
	Keys     []byte // as in proto.Chunk
	Sums     bool   // they are kept beside the last of Save
}

// Wanted is a row of a step whose logits are requested.
type Wanted struct {
	Run, Row int   // the run, and the row within it
	Position int   // of the token that the logits predict
	Sample   bool  // draw a token from them
	Score    int32 // else: report the log-probability of this prompt token
	Top      int   // and of so many of the best
}

// Copy is a cache that goes whole from its owner to its replica.
type Copy struct {
	Seq    uint64
	Tokens int // in the cache
	Rows   int // that the step will add
}

// Work is what one step is on this socket: First, then the copies, the layers, the
// head for the wanted rows, the decoded rows to their replicas, and the hand-over of
// prompts that are complete. Every rank derives the same collectives from it.
type Work struct {
	Epoch  uint32
	Step   uint64
	Batch  int // micro-batch
	First  []Effect
	Copies []Copy
	Runs   []Run
	Wanted []Wanted
	Index  []Index
	Passes int // over the runs, of which each has one token: see Again
	// Halvings of the threads that compute.
	Halvings int
}

// Again makes the runs those of the next pass: each has the token that it drew.
func (w *Work) Again(drawn func(*Run) uint32) {
	for i := range w.Runs {
		r := &w.Runs[i]
		r.Start, r.Tokens = r.Start+1, []uint32{drawn(r)}
	}
	for i := range w.Wanted {
		w.Wanted[i].Position++
	}
}

// Index are pieces of a prompt's clustering: From were done.
type Index struct {
	Seq          uint64
	From, Pieces int
}
