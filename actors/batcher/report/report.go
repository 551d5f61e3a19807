// Package report has the values that the batcher takes and returns: results of steps, events of requests,
// and figures of its work, its requests and its sockets.
package report

// Totals counts the work repeated since the start, for sequences that lost their placement
// or their memory.
type Totals struct {
	Recomputed     uint64 // tokens that prefill read again
	Replayed       uint64 // output tokens that decode rows computed again
	Restored       uint64 // caches that outlived their epoch on their owner
	Copies         uint64 // caches that were replaced by a replica
	Preempted      uint64 // sequences that were preempted
	Spilled        uint64 // caches whose rows went to files
	Lost           uint64 // caches whose files failed
	Transferred    uint64 // caches that came from the prefill group
	Saved          uint64 // caches of idle sessions that were written to files
	Loaded         uint64 // caches that were read from these files for the next turn
	LoadErrors     uint64 // caches that could not be read from these files
	TransferErrors uint64 // prompts that the prefill group could not read, or whose caches did not arrive
}

// Request is one request.
type Request struct {
	ID string
	// "waiting", "prefill", "decoding", "ending"; "context" is held for others, "evicted" was held until memory was
	// short, "session" waits for the next turn, "transfer" moves between groups or comes from a file
	State     string
	Reason    string // reason why the request waits; "": it runs
	Owner     string // ID of the owner's socket; "": the request waits
	Prompt    int    // tokens
	Output    int
	Cached    int // tokens in the cache
	Bytes     int64
	Replica   string // socket with a copy of the cache
	Cut       bool   // its cache is cut over all sockets
	Copied    int64  // the part of Bytes that the copy takes
	Preempted int
	Hold      bool // it is a fixed context
}

// SocketLedger is the memory that the batcher has booked on one socket, in bytes.
type SocketLedger struct {
	ID        string
	Budget    int64
	Reserved  int64
	Used      int64 // measured after the last step; -1: not yet
	Freed     int64 // bytes that hand-overs gave back in this epoch
	Replicas  int64 // the part of Reserved for replicas
	Shared    int64 // the part of Reserved for blocks that several sequences may hold
	Evictable int64 // not in Reserved: the prefix cache, which is evicted when sequences need the bytes
	Sequences int   // owned
	Files     int64 // bytes of files that rows of sequences take or will take
	Scratch   int64 // maximum of Files
}

// Outage is the cost so far of the end of an epoch, for the sequences that it interrupted.
type Outage struct {
	Epoch   uint32 // that ended
	Streams int    // sequences that ran in it, or that still waited from an earlier outage
	Waiting int    // sequences without a new token since
	Failed  int    // sequences that ended with an error

	Recomputed, Replayed uint64 // tokens computed again, by prefill and by decode
	Restored, Copies     uint64 // caches that were used again: of owners, and replicas
	SilentMillis         int64  // the longest time between two tokens of a sequence
}

// Over counts a sequence of the outage that continues or has ended.
func (o *Outage) Over(failed bool) {
	if o == nil {
		return
	}
	o.Waiting--
	if failed {
		o.Failed++
	}
}

// Reused counts caches that were used again.
func (o *Outage) Reused(own, copies uint64) {
	if o != nil {
		o.Restored += own
		o.Copies += copies
	}
}

// Snapshot is the state for /v1/cluster. The caller owns it.
type Snapshot struct {
	Epoch    uint32
	Placed   bool
	Unplaced string // reason why there is no working placement
	Draining bool

	Step            uint64 // the newest that was started
	InFlight        bool
	BatchRows       int // of the step in flight
	BatchSequences  int
	Running         []Request      // in order
	Waiting         []Request      // without sequences that only keep a cache for others
	Evicted         []Request      // fixed contexts that have given up their memory
	Sockets         []SocketLedger // by rank
	TokensPerSecond float64        // prompt tokens read and output tokens emitted; 0 when idle
	Totals          Totals
	Outage          Outage // of the newest epoch that ended
	Prefix          PrefixTotals
	PrefixBlocks    int // of tensor.BlockSlots tokens that can be found
	Speculated      Speculated
	ThreadShift     int  // plan.ThreadShift of the newest step
	MicroBatches    int  // of the newest step
	Trying          bool // shifts are being tried for steps of this kind
	// Trials are the microseconds of a pass of each measured plan, by thread shift; nil for steps that
	// do more than decode.
	Trials [][]float64
}
