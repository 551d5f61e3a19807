package batcher

import (
	"cmp"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/drafts"
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// phase is the state of a request: waiting -> prefill -> decoding, and back to waiting after a
// preemption or the end of its epoch.
type phase uint8

const (
	waiting phase = iota
	prefill
	decoding
)

// request is a Spec and its progress. Its tokens survive preemption and epochs; the other fields
// belong to one admission. Modules keep their state of it in one field each.
type request struct {
	Spec
	number uint64    // order of submission; decides ties
	rank   int64     // place in the order: arrival + priority
	limit  int       // maximum output tokens, by MaxTokens and the context
	out    []int32   // output tokens so far
	pooled []float32 // the vector of its prompt
	scored int       // prompt positions below this one have been scored

	phase     phase
	unread    bool // its client does not read its tokens
	paused    bool // it decodes, and its adapter is not in memory yet
	stalled   bool // it decodes, and waits for memory of an idle cache that is being written to a file
	complete  bool // it has all its tokens
	idle      bool // its turn has ended; its cache waits for the next one until this time
	until     int64
	idleSince int64
	write     saved.File // its cache in a file, while it is idle
	waits     int64      // since when it waits for memory of idle caches that go to files; 0: it does not
	saved     saved.Turn // the cache of its session in a file, before it runs
	ended     bool       // its Finish was emitted; its memory is freed between steps
	seq       uint64
	owner     int
	read      int     // tokens that prefill reads in this admission
	cached    int     // tokens in the cache
	staged    int     // tokens of the last step in the cache, which the sockets have not committed
	booked    []int64 // bytes in the ledger, by rank
	reached   int     // largest number of cached tokens in any of its admissions
	resides   resides // other places of its cache
	kept      kept    // the admission that the end of an epoch interrupted
	outage    *Outage // the outage that interrupted it, until its next token; or nil
	lastToken int64   // time of its newest token
	drafted   drafts.Sequence
	remote    prefillgroup.Prompt

	prefix  cachedPrefix
	awaited uint64 // sequence that it waited for (State.awaits)
	warm    int    // tokens of the prompt that a cache had at each of its admissions

	clustered clustered
	sweeping  sweeping
	cut       cutting
	open      openEnd
	shares    *contextShare // memory that its cache shares with others of the same context, or nil

	able      []bool // by rank: the socket can own it to its end
	unfit     string // reason why the placement can never take it; "": it can
	unserved  int64  // start of the time in which no placement can take it; -1: one can
	failures  int    // failed steps since its last new token
	preempted int
	started   int64
	first     int64
}

// token returns the token at a position of prompt + output.
func (r *request) token(pos int) int32 {
	if pos < len(r.Prompt) {
		return r.Prompt[pos]
	}
	return r.out[pos-len(r.Prompt)]
}

// tokens copies the tokens at [lo, hi).
func (r *request) tokens(lo, hi int) []int32 {
	run := make([]int32, 0, hi-lo)
	for pos := lo; pos < hi; pos++ {
		run = append(run, r.token(pos))
	}
	return run
}

// toRead returns the number of tokens that prefill reads if the request is admitted now. Under an
// identity policy a cache is the same after prefill and after decode. Other policies evict during
// decode, so the output must be replayed.
func (r *request) toRead() int {
	switch {
	case r.cut.must:
		return min(r.known(), r.final())
	case r.Policy.RebuildsByPrefill() && r.Context == 0:
		return r.known()
	}
	return r.context()
}

// context returns the number of prompt tokens that prefill reads; the others come as decode rows.
func (r *request) context() int {
	if r.Context > 0 {
		return r.Context
	}
	return r.Policy.Context(len(r.Prompt))
}

// holdsContext reports whether the request holds a cache for others, and has no rows.
func (r *request) holdsContext() bool {
	return r.Hold && len(r.out) > 0 && (r.phase == decoding || r.cut.now && r.cached >= len(r.Prompt))
}

// onlyHoldsCache reports whether the request has all its tokens, and only keeps its cache for others: the next turn
// of a session, or the requests of a context. It may be in the queue without memory.
func (r *request) onlyHoldsCache() bool { return r.idle || r.Hold && len(r.out) > 0 }

// final returns the number of tokens in the cache at the very end. The last output token is never
// fed back.
func (r *request) final() int { return len(r.Prompt) + max(r.limit, 1) - 1 }

// demand returns the tokens that determine the memory of an admission: those that prefill reads,
// and those in the cache after the first decode row; 0 without decode rows and hand-over.
func (r *request) demand() (read, tokens int) {
	read = r.toRead()
	if r.Pool != pooling.None {
		return read, 0
	}
	return read, min(read+1, r.final())
}

// sameCache reports whether equal tokens have equal cache rows in both requests.
func (r *request) sameCache(v *request) bool {
	return v.Policy.Spec() == r.Policy.Spec() && v.Adapter.ID == r.Adapter.ID
}

// arrives reports whether the next admission takes a cache from the prefill group or from a file.
func (r *request) arrives() bool {
	return r.remote.Phase == prefillgroup.Ready || r.saved.Phase == saved.Located
}

func (r *request) canOwn(rank int) bool { return r.able[rank] }

// finished returns the reason why the newest token ends the request, if it does.
func (r *request) finished(eos []int32) (string, bool) {
	if n := len(r.out); n > 0 {
		last := r.out[n-1]
		if slices.Contains(r.Stop, last) || !r.IgnoreEOS && slices.Contains(eos, last) {
			return ReasonStop, true
		}
	}
	return ReasonLength, len(r.out) >= r.limit && r.limit > 0
}

// restart resets the admission and keeps the tokens.
func (r *request) restart() {
	r.phase, r.seq, r.owner, r.read, r.cached, r.staged, r.booked, r.kept = waiting, 0, 0, 0, 0, 0, nil, kept{}
	r.prefix.restart()
	r.remote.Restart()
	r.saved.Restart()
	r.write, r.waits = saved.File{}, 0
	r.cut.now, r.open.moves = false, false
	r.shares, r.clustered, r.sweeping, r.paused, r.stalled = nil, clustered{}, sweeping{}, false, false
	r.resides = resides{replica: none, inMemory: r.resides.inMemory}
}

// queue is a list of requests in order.
type queue []*request

func inOrder(a, b *request) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.number, b.number))
}

// requests returns the number of requests that a client waits for.
func (q queue) requests() (n int) {
	for _, r := range q {
		if !r.onlyHoldsCache() {
			n++
		}
	}
	return n
}

func (q *queue) insert(r *request) {
	at, _ := slices.BinarySearchFunc(*q, r, inOrder)
	*q = slices.Insert(*q, at, r)
}

func (q *queue) remove(r *request) {
	if at, ok := slices.BinarySearchFunc(*q, r, inOrder); ok {
		*q = slices.Delete(*q, at, at+1)
	}
}
