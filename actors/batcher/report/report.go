// Package report has the values that the batcher takes and returns: results of steps, events of requests,
// and figures of its work, its requests and its sockets.
package report

// Totals is the work since the start that was done again, for sequences that lost their placement
// or their memory.
type Totals struct {
	Recomputed uint64 // tokens that prefill read again
	Replayed   uint64 // output tokens that decode rows computed again
	Restored   uint64 // caches that outlived their epoch on their owner
	Copies     uint64 // caches that were replaced by a replica
	Preempted  uint64 // sequences that were preempted
	Spilled    uint64 // caches whose rows went to files
	Lost       uint64 // caches whose files failed
}

// Request is one request.
type Request struct {
	ID        string
	State     string // "waiting", "prefill", "decoding", "ending"; "context" is held for others, "session" waits for the next turn
	Why       string // of one that waits
	Owner     string // socket, of one that runs
	Prompt    int    // tokens
	Output    int
	Cached    int // tokens in the cache
	Bytes     int64
	Replica   string // socket with a copy of the cache
	Copied    int64  // of Bytes, what the copy takes
	Preempted int
}

// Socket is the ledger of one socket, in bytes.
type Socket struct {
	ID        string
	Budget    int64
	Reserved  int64
	Used      int64 // measured after the last step; -1: not yet
	Freed     int64 // bytes that hand-overs gave back in this epoch
	Replicas  int64 // the part of Reserved for replicas
	Shared    int64 // the part of Reserved for blocks that several sequences may hold
	Evictable int64 // not in Reserved: the prefix cache, which is evicted when sequences need the bytes
	Sequences int   // owned
	Files     int64 // bytes of files that rows of sequences take, or will
	Scratch   int64 // the most
}
