// Package plan holds one step of the model as a value, from the scheduler to the
// executor: the batcher makes a Plan, Encode and Decode carry it to the sockets, and
// every socket checks and runs what it reads. The decision is in docs/decisions/plan.md.
//
// A new field needs three places: internal/proto/shoal.proto, the type in this file with
// its two lines in wire.go, and the code that acts on it. TestRoundTrip fails for a field that Encode
// or Decode leaves out.
package plan

import (
	"crypto/sha256"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// None is the rank of a replica, or the token, that does not exist.
const None = -1

// Plan is one step of the model over a batch. A socket acts on the fields in this order:
// Keep, Release, DropReplica, DropStates, Evict, DropExtras, Open, Copy, and then it runs the rows.
// A socket ignores releases of unknown sequences and blocks.
type Plan struct {
	Epoch       uint32
	Step        uint64 // 1, 2, 3, ... across epochs
	Release     []uint64
	DropReplica []uint64 // sequences that lose their replica
	DropStates  []uint64 // sequences that lose the copy of their recurrent states
	Keep        []Keep   // blocks of sequences in Release that the prefix cache takes over
	Evict       []uint64 // blocks of the prefix cache that are dropped
	DropExtras  []uint64 // blocks of the prefix cache that stay, without their attention sums and snapshot
	Open        []Open
	Copy        []Copy
	Spill       []Spill
	Decode      []Run // rows of sequences that decode
	Chunks      []Run // of prompts
	Sweeps      []Sweep
	Index       []Index
	Passes      int // over the rows of Decode: each pass reads the token that the pass before sampled; 0 means 1
	ThreadShift int // each node halves its compute threads this many times, rounding up, as far as it can
	// MicroBatches is the number of parts in which the rows run through the layers, so that one part
	// computes while another waits for the network; 0 means 1.
	MicroBatches int
}

// MaxMicroBatches is the largest Plan.MicroBatches.
const MaxMicroBatches = 2

// MaxTaking bounds the caches that a socket takes at once from the prefill group.
const MaxTaking = 64

// Tokens returns the number of rows of the step, or of one of its passes, without those of Sweeps.
func (p *Plan) Tokens() int {
	n := 0
	for _, r := range p.Decode {
		n += len(r.Tokens)
	}
	for _, r := range p.Chunks {
		n += len(r.Tokens)
	}
	return n
}

// PassCount returns the number of passes of the model, at least 1.
func (p *Plan) PassCount() int { return max(1, p.Passes) }

// Open introduces a sequence to the sockets, in the step of its first chunk. A request
// gets a new Seq each time it is admitted.
type Open struct {
	Seq      uint64
	ID       string // of the request, for traces; it does not cross the wire
	Owner    int    // rank
	Policy   *kvcache.Policy
	Sampling *sampler.Params
	Read     int // tokens that prefill reads; later ones come as decode rows
	Sampled  int // the number of tokens at the end of Read that were output already (rebuild)
	Tail     int // the number of prompt tokens that come as decode rows
	Reserve  int // tokens that the owner's ledger covers at first: Read, or one more

	// Pool, unless None, makes a vector of the hidden states of the Read tokens, and nothing is
	// sampled. The step that reads the last of them reports it, and no run has Last.
	Pool pooling.Method

	// Resume holds the tokens of a cache that outlived its epoch. The owner has that
	// cache, and the socket Replica (None: no socket) has a copy. Decode continues with
	// it. nil: the sequence starts from its first token.
	Resume  []int32
	Replica int
	// Fork is the sequence whose cache this one starts with, up to Read; Resume has its
	// tokens. 0: none.
	Fork uint64
	// Take means that this sequence takes the cache of Fork, with all tokens in Resume. Fork ends.
	Take bool
	// Adapter is the LoRA adapter of all rows; zero: none.
	Adapter lora.ID
	// PassRows, unless 0, means that sweeps read the prompt layer by layer. The layers get this
	// number of its rows at a time, counted from its first token that no shared block has.
	PassRows int
	// InFile means that each socket stores its rows of the residual stream in a file between layers.
	InFile bool

	// Shared lists the blocks of the prefix cache that the prompt starts with, and Prefix
	// their tokens. Read counts them, and the first chunk follows them.
	Shared []uint64
	Prefix []int32

	// IndexKey is the key of the prompt's index in files. Zero: it is not stored.
	IndexKey Key
}

// Keep moves blocks of a sequence that has ended to the prefix cache, from block number
// From on. A block with ID 0 is in the cache already. It comes before the release. The last step of the sequence may
// have written the end of the blocks: the tokens up to there are committed.
type Keep struct {
	Seq    uint64
	From   int
	Blocks []uint64
	Keys   []Key // as in Run

	// Snapshot is the block that gets the copy of the recurrent states after the last of these blocks;
	// 0: none.
	Snapshot uint64
}

// Key names a block by everything that its rows depend on: the model, the sharing
// group, and all tokens up to its end.
type Key [sha256.Size]byte

// Run is a run of tokens of one sequence in one step.
//
// In decode the first token is known and the others may be drafts. All of them enter the
// cache from Start on. After each one the next token is sampled, until a sampled token
// differs from the next in Tokens. A later plan has the number of them that count (Accepted).
// The input after a fixed context, and a session's next message, are decode runs of prompt tokens. Only
// the last token of the prompt is followed by a sample.
type Run struct {
	Seq    uint64
	Owner  int // rank; it does not cross the wire, since Open has it
	Start  int // position of the first token
	Tokens []int32
	Sample bool // prefill: sample after the last row; decode: after each row but the first Known ones

	// Decode only.
	Known    int // with Sample: number of first tokens that are followed by a prompt token, not by a sample
	Accepted int // the number of tokens of the sequence's last run that count; Start follows them
	Draft    int // the most tokens that a draft model guesses after the newest token

	// Prefill only.
	Prefill bool
	Last    bool // the prompt ends here: its cache goes to the owner, now or with pieces of Index
	// PromptLogprobs: None, or k >= 0: score the tokens at (Start, Start+len(Tokens)], and
	// report the k best tokens for each. Next is the token after the run, None at the end.
	PromptLogprobs int
	Next           int32
	// Save lists blocks of the prompt that the prefix cache keeps after the step, from
	// block number SaveFrom on. A block that the cache has replaces the sequence's own.
	SaveFrom int
	Save     []uint64
	Keys     []Key // for files: of the block before Save, then of each in Save; nil without files
	Sums     bool  // keep attention sums with the last block of Save, where the run ends

	// Snapshot keeps a snapshot of the recurrent states there. In decode it reserves memory on the owner
	// for a copy of them, see CopyAfter.
	Snapshot bool
}

// CopyAfter returns where the owner copies the recurrent states of a sequence with memory for that, when
// tokens [from, to) of its last run count: after the last full block. 0: nowhere. The
// sequence has a copy after the first had tokens.
func CopyAfter(from, to, had int) int {
	if at := to / tensor.BlockSlots * tensor.BlockSlots; at >= from && at != had {
		return at
	}
	return 0
}

// Sweep takes tokens of a prompt through the layers of the caches [From, To) (model.Config.FirstLayer), after the
// other rows of the step. The layers begin with the first token that no shared block has. After the prompt's last
// token, the rows that the policy keeps of these layers go to the owner, and the full cache of the
// layers is freed. Then the sweeps of the next layers begin. The decision is in
// docs/decisions/layer-by-layer.md.
type Sweep struct {
	Seq      uint64
	From, To int
	Start    int // position of the first token
	Tokens   []int32
	Sample   bool // after the last token, in the last layer
}

// Copy makes a replica: before the rows run, the owner sends the whole cache of a
// sequence to another socket. Each later step sends the new rows.
type Copy struct {
	Seq     uint64
	Owner   int // rank; it does not cross the wire
	Replica int // rank
}

// Spill moves the rows of the first blocks of a cache to a file of its owner.
type Spill struct {
	Seq    uint64
	Owner  int // rank; it does not cross the wire
	Blocks int
}

// Index computes pieces of a prompt's clustering (kvcache.IndexWork): Pieces of them,
// after the first From, which earlier steps did.
type Index struct {
	Seq    uint64
	From   int
	Pieces int
}
