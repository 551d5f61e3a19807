package batcher

import (
	"cmp"
	"slices"
)

// phase of a request: waiting -> prefill -> decoding, and back to waiting when
// it is preempted or its epoch breaks.
type phase uint8

const (
	waiting phase = iota
	prefill
	decoding
)

// request is a Spec and how far it got. Its tokens survive everything; the rest
// belongs to one admission.
type request struct {
	Spec
	number uint64  // order of submission, breaks ties
	rank   int64   // place in the order: arrival + priority
	limit  int     // output tokens at most, by MaxTokens and the context
	out    []int32 // output tokens so far
	scored int     // prompt positions up to this one have been scored

	phase   phase
	unread  bool // its reader does not take its tokens
	ended   bool // Finish is out; memory goes at the step boundary
	seq     uint64
	owner   int
	read    int     // tokens that prefill reads in this admission
	cached  int     // tokens in the cache
	staged  int     // of these, those of the last step: the sockets have not committed them
	hold    []int64 // ledger bytes by rank
	reached int     // most tokens that any admission's cache had
	resides resides // where else its cache lies
	kept    kept    // of the admission that the end of an epoch cut off
	outage  *Outage // that cut it off, until it has a new token; nil: none
	spoke   int64   // when its newest token came
	drafted drafted

	prefix  cachedPrefix
	awaited uint64 // sequence that it waited for, see State.awaits
	warm    int    // tokens of the prompt that a cache had at its first admission

	clustered clustered
	shares    *contextShare // memory that its cache shares with others of the same context, or nil

	able      []bool // owners that can take it to its end, by rank
	unfit     string // why the present placement cannot take it at all; "": it can
	unserved  int64  // since when nothing can take it, -1: something can
	failures  int    // steps that failed under it since its last new token
	preempted int
	started   int64
	first     int64
}

// token is the token at a position of prompt + output.
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

// toRead is how many tokens prefill reads when the request is admitted now. Under
// an identity policy a cache does not tell prefill from decode; other policies
// evict as they decode, so what was generated must be replayed.
func (r *request) toRead() int {
	if r.Policy.RebuildsByPrefill() && r.Context == 0 {
		return len(r.Prompt) + len(r.out)
	}
	return r.context()
}

// context is how many of the prompt's tokens prefill reads; the others come as decode rows.
func (r *request) context() int {
	if r.Context > 0 {
		return r.Context
	}
	return r.Policy.Context(len(r.Prompt))
}

// rests says that the request holds a cache for others, and has no rows.
func (r *request) rests() bool { return r.Hold && r.phase == decoding && len(r.out) > 0 }

// final is the number of tokens in the cache at the very end: the last output
// token is never fed back.
func (r *request) final() int { return len(r.Prompt) + max(r.limit, 1) - 1 }

// asks is what an admission now asks of the ledger: tokens that prefill reads,
// and tokens in the cache after the first decode row.
func (r *request) asks() (read, tokens int) {
	read = r.toRead()
	return read, min(read+1, r.final())
}

func (r *request) canOwn(rank int) bool { return r.able[rank] }

// finished says why the request is over after its newest token, if it is.
func (r *request) finished(eos []int32) (string, bool) {
	if n := len(r.out); n > 0 {
		last := r.out[n-1]
		if slices.Contains(r.Stop, last) || !r.IgnoreEOS && slices.Contains(eos, last) {
			return ReasonStop, true
		}
	}
	return ReasonLength, len(r.out) >= r.limit && r.limit > 0
}

// restart forgets the admission and keeps the tokens.
func (r *request) restart() {
	r.phase, r.seq, r.owner, r.read, r.cached, r.staged, r.hold, r.kept = waiting, 0, 0, 0, 0, 0, nil, kept{}
	r.prefix.restart()
	r.shares, r.clustered = nil, clustered{}
	r.resides = resides{replica: none, inMemory: r.resides.inMemory}
}

// queue is a list of requests in order.
type queue []*request

func inOrder(a, b *request) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.number, b.number))
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
