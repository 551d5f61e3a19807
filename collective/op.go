package collective

// op is one operation in flight on this rank. It has at most two phases. A phase sends its messages
// when the phase before it has all its data. Data of a later phase may arrive at any time; each
// phase has its own inboxes.
type op struct {
	id       OpID
	done     func(error)
	deadline int64
	waits    int64 // when the wait for the next inbox began, in nanoseconds
	phases   [2]phase
	count    int // phases in use
	at       int // phase whose data is awaited
	unsent   int // payloads that the transport has not accepted completely
	busy     int // copies, encodings and reductions in progress outside the lock
	moved    int // payload bytes to send and receive
	err      error
	over     bool // completed or failed: accepts no more data

	segs    [][]byte // payload pieces of all sends
	reduce  reduction
	scratch []float32
}

type phase struct {
	kind     Kind
	dtype    uint8
	sends    []send
	in       []inbox // by rank
	missing  int     // inboxes that still miss chunks
	combine  bool    // run op.reduce when the last inbox is full
	queued   bool    // the sends are in the worker's queue
	reducing bool    // the shell computes the reduction
	reduced  bool
}

// send is one payload, the concatenation of segs[lo:hi], for one rank or for all.
type send struct {
	dst    int
	lo, hi int
	size   int
}

// inbox is the destination of one rank's payload in one phase.
type inbox struct {
	dst    []byte
	want   bool
	chunks int
	left   int // chunks not yet copied
	seen   bitset
}

func (o *op) reset() {
	for p := range o.phases {
		ph := &o.phases[p]
		for i := range ph.in {
			ph.in[i].dst = nil
		}
		clear(ph.sends)
		*ph = phase{sends: ph.sends[:0], in: ph.in}
	}
	clear(o.segs)
	o.reduce.reset()
	if cap(o.scratch) > 4<<20 { // 16 MiB: do not keep the memory of a rare large operation
		o.scratch = nil
	}
	o.done, o.err, o.over = nil, nil, false
	o.count, o.at, o.unsent, o.busy, o.moved = 0, 0, 0, 0, 0
	o.segs = o.segs[:0]
}

// phase opens the next phase for a group of n ranks.
func (o *op) phase(kind Kind, dtype uint8, n int) *phase {
	ph := &o.phases[o.count]
	o.count++
	ph.kind, ph.dtype = kind, dtype
	if cap(ph.in) < n {
		ph.in = make([]inbox, n)
	}
	ph.in = ph.in[:n]
	for i := range ph.in {
		ph.in[i].want = false
		ph.in[i].dst = nil
	}
	return ph
}

// seg adds one piece of payload. A send covers a range of pieces.
func (o *op) seg(b []byte) { o.segs = append(o.segs, b) }

// send queues the pieces added since first as one payload. An empty payload is skipped unless
// evenEmpty is set.
func (o *op) send(ph *phase, dst, first int, evenEmpty bool) {
	s := send{dst: dst, lo: first, hi: len(o.segs)}
	for _, b := range o.segs[first:] {
		s.size += len(b)
	}
	if s.size == 0 && !evenEmpty {
		return
	}
	o.moved += s.size
	ph.sends = append(ph.sends, s)
}

// expect sets the destination of rank r's payload. The operation waits for an empty payload only if
// evenEmpty is set.
func (o *op) expect(ph *phase, r int, dst []byte, chunkBytes int, evenEmpty bool) {
	if len(dst) == 0 && !evenEmpty {
		return
	}
	in := &ph.in[r]
	in.dst, in.want = dst, true
	in.chunks = chunkCount(len(dst), chunkBytes)
	in.left = in.chunks
	in.seen.reset(in.chunks)
	o.moved += len(dst)
	ph.missing++
}

// gather copies bytes [at, at+len(dst)) of a send's payload to dst.
func (o *op) gather(s send, dst []byte, at int) {
	for _, b := range o.segs[s.lo:s.hi] {
		if at >= len(b) {
			at -= len(b)
			continue
		}
		n := copy(dst, b[at:])
		dst, at = dst[n:], 0
		if len(dst) == 0 {
			return
		}
	}
}

func chunkCount(n, chunkBytes int) int { return max(1, (n+chunkBytes-1)/chunkBytes) }

// chunkRange returns the byte range of chunk i in a payload of n bytes.
func chunkRange(n, chunkBytes, i int) (lo, hi int) {
	return i * chunkBytes, min(n, (i+1)*chunkBytes)
}

// bitset records which chunks have arrived. Up to 64 bits need no allocation.
type bitset struct {
	first uint64
	more  []uint64
}

func (b *bitset) reset(n int) {
	b.first = 0
	words := (n+63)/64 - 1
	if words <= 0 {
		b.more = b.more[:0]
		return
	}
	if cap(b.more) < words {
		b.more = make([]uint64, words)
	}
	b.more = b.more[:words]
	clear(b.more)
}

// set reports whether bit i was clear, and sets it.
func (b *bitset) set(i int) bool {
	w := &b.first
	if i >= 64 {
		w = &b.more[i/64-1]
	}
	m := uint64(1) << (i % 64)
	was := *w & m
	*w |= m
	return was == 0
}
