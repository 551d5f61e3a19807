package collective

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// state is the group as a pure state machine. Inputs: start, message, landed, combined, encoded,
// sent, tick, fail. Outputs, taken by the shell: jobs (payloads to send), replays (stashed messages
// whose operation has started), combines (reductions to compute), dones, recycled buffers, notice.
//
// The shell moves bytes without the lock. While it uses memory of an operation (op.busy), the
// operation does not complete, not even as failed, because done returns the caller's slices. The
// shell ends that use through landed, encoded or combined.
type state struct {
	cfg     Config
	batches [256]microBatch
	ops     map[OpID]*op
	free    []*op

	stash      map[OpID][]stashed
	stashBytes int
	spare      [][]stashed

	jobs     queue[job]
	replays  queue[stashed]
	combines queue[*op]
	dones    queue[completion]
	recycled queue[[]byte]
	err      error // the failure, set once
	notice   bool  // OnFail must be called

	stats Stats
	late  []time.Duration // by rank: see Group.Late
	awake int64           // nanoseconds that this process was not paused; the shell advances it
}

type microBatch struct {
	started bool
	last    uint64
}

// stashed is a message of an operation that this rank has not started.
type stashed struct {
	h       Header
	payload []byte
	msg     []byte
}

// job is the unsent rest of one payload.
type job struct {
	op    *op
	phase int
	send  int
	chunk int
}

type completion struct {
	done func(error)
	err  error
}

// landing permits the shell to copy a payload to dst. landed ends that.
type landing struct {
	op    *op
	phase int
	rank  int
	dst   []byte
}

func newState(cfg Config) *state {
	return &state{cfg: cfg, ops: map[OpID]*op{}, stash: map[OpID][]stashed{}, late: make([]time.Duration, cfg.Size)}
}

// newOp returns a blank operation. The caller describes it, then starts it.
func (s *state) newOp(id OpID, done func(error)) *op {
	var o *op
	if n := len(s.free); n > 0 {
		o, s.free = s.free[n-1], s.free[:n-1]
	} else {
		o = &op{}
	}
	o.id, o.done = id, done
	return o
}

// start begins a described operation.
func (s *state) start(now int64, o *op) {
	l := &s.batches[o.id.MicroBatch()]
	switch {
	case s.err != nil:
		s.finish(o, s.err)
		return
	case l.started && o.id.Sequence() <= l.last:
		s.refuse(o, fmt.Sprintf("numbers of a micro-batch must rise: %d was started before", l.last))
		return
	}
	l.started, l.last = true, o.id.Sequence()
	s.ops[o.id] = o
	for id := range s.stash {
		if id.MicroBatch() == o.id.MicroBatch() && id.Sequence() < l.last {
			s.fail(&OpError{Op: id, Ranks: []int{int(s.stash[id][0].h.Source)}, Err: ErrProtocol,
				Detail: fmt.Sprintf("peer started an operation that this rank skipped (it is at %v): ranks disagree about the sequence", o.id)})
			return
		}
	}
	o.waits = s.awake
	o.deadline = now + int64(s.cfg.Deadline) + int64(float64(o.moved)/float64(s.cfg.Rate)*1e9)
	if held, ok := s.stash[o.id]; ok {
		delete(s.stash, o.id)
		for _, m := range held {
			s.stashBytes -= len(m.msg)
			s.replays.push(m)
		}
		clear(held)
		s.spare = append(s.spare, held[:0])
	}
	s.advance(o)
}

// refuse fails the group because of a bad call for o. This rank cannot take part in the operation, so
// its peers would wait until they time out.
func (s *state) refuse(o *op, detail string) {
	if s.err == nil {
		s.fail(&OpError{Op: o.id, Err: ErrArgument, Detail: detail})
	}
	s.finish(o, s.err)
}

// message handles one message. If ok, the shell copies the payload to the landing and calls landed.
// keep: the state holds msg for later.
func (s *state) message(src int, h Header, payload, msg []byte) (l landing, ok, keep bool) {
	if d := s.foreign(src, h); d != DropNone {
		s.drop(d)
		return landing{}, false, false
	}
	o := s.ops[h.Op]
	if o == nil || o.over {
		return landing{}, false, s.unstarted(h, payload, msg)
	}
	return s.deliver(o, h, payload)
}

// foreign returns why a message does not belong to this group, or DropNone.
func (s *state) foreign(src int, h Header) Drop {
	switch {
	case s.err != nil:
		return DropFailed
	case h.Epoch != s.cfg.Epoch:
		return DropEpoch
	case int(h.Size) != s.cfg.Size:
		return DropSize
	case int(h.Source) != src || src < 0 || src >= s.cfg.Size || src == s.cfg.Rank:
		return DropSource
	case h.Incarnation != s.cfg.Incarnations[src]:
		return DropIncarnation
	}
	return DropNone
}

// unstarted drops a message of a finished operation and stashes one of a future operation.
func (s *state) unstarted(h Header, payload, msg []byte) (keep bool) {
	if l := s.batches[h.Op.MicroBatch()]; l.started && h.Op.Sequence() <= l.last {
		s.drop(DropStale)
		return false
	}
	held, known := s.stash[h.Op]
	if !known && len(s.stash) >= s.cfg.WindowOps || s.stashBytes+len(msg) > s.cfg.WindowBytes {
		s.fail(&OpError{Op: h.Op, Kind: h.Kind, Ranks: []int{int(h.Source)}, Err: ErrWindow,
			Detail: fmt.Sprintf("holding messages of %d operations, %d bytes (limits %d, %d)", len(s.stash),
				s.stashBytes, s.cfg.WindowOps, s.cfg.WindowBytes)})
		return false
	}
	if n := len(s.spare); !known && n > 0 {
		held, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	s.stash[h.Op] = append(held, stashed{h, payload, msg})
	s.stashBytes += len(msg)
	s.stats.StashedBytesPeak = max(s.stats.StashedBytesPeak, s.stashBytes)
	return true
}

// deliver finds the destination of a payload in its operation.
func (s *state) deliver(o *op, h Header, payload []byte) (l landing, ok, keep bool) {
	misfit := func(detail string) (landing, bool, bool) {
		s.fail(&OpError{Op: h.Op, Kind: h.Kind, Ranks: []int{int(h.Source)}, Err: ErrProtocol, Detail: detail})
		return landing{}, false, false
	}
	p := 0
	for p < o.count && o.phases[p].kind != h.Kind {
		p++
	}
	if p == o.count {
		return misfit(fmt.Sprintf("this rank runs %v there", o.phases[0].kind))
	}
	ph := &o.phases[p]
	in := &ph.in[h.Source]
	if !in.want {
		return misfit(fmt.Sprintf("%d bytes from a rank that should send nothing", h.Length))
	}
	lo, hi := chunkRange(len(in.dst), s.cfg.ChunkBytes, int(h.Chunk))
	if h.DType != ph.dtype || int(h.Chunks) != in.chunks || int(h.Chunk) >= in.chunks || len(payload) != hi-lo {
		return misfit(fmt.Sprintf("chunk %d of %d with %d bytes of dtype %d does not fit %d bytes in %d chunks of dtype %d",
			h.Chunk, h.Chunks, len(payload), h.DType, len(in.dst), in.chunks, ph.dtype))
	}
	if !in.seen.set(int(h.Chunk)) {
		s.drop(DropDuplicate)
		return landing{}, false, false
	}
	o.busy++
	return landing{op: o, phase: p, rank: int(h.Source), dst: in.dst[lo:hi]}, true, false
}

// landed ends a landing: the payload was copied.
func (s *state) landed(l landing) {
	o := l.op
	o.busy--
	if s.settle(o) {
		return
	}
	ph := &o.phases[l.phase]
	in := &ph.in[l.rank]
	if in.left--; in.left == 0 {
		ph.missing--
		if l.phase == o.at {
			if ph.missing == 0 {
				s.late[l.rank] += time.Duration(s.awake - o.waits)
			}
			o.waits = s.awake
		}
		s.advance(o)
	}
}

// advance moves o through all phases whose data has arrived.
func (s *state) advance(o *op) {
	for ; o.at < o.count; o.at++ {
		ph := &o.phases[o.at]
		if !ph.queued {
			ph.queued = true
			for i := range ph.sends {
				s.jobs.push(job{op: o, phase: o.at, send: i})
				o.unsent++
			}
		}
		if ph.missing > 0 {
			return
		}
		if ph.combine && !ph.reduced {
			if !ph.reducing {
				ph.reducing = true
				o.busy++
				s.combines.push(o)
			}
			return
		}
	}
	if o.unsent == 0 && o.busy == 0 {
		delete(s.ops, o.id)
		s.stats.Ops++
		s.finish(o, nil)
	}
}

// combined records that the reduction of o's current phase is complete.
func (s *state) combined(o *op) {
	o.busy--
	if s.settle(o) {
		return
	}
	o.phases[o.at].reduced = true
	s.advance(o)
}

// nextJob returns the next chunk to send and marks its operation busy until encoded.
func (s *state) nextJob() (j job, ok bool) {
	if j, ok = s.jobs.pop(); ok {
		j.op.busy++
	}
	return j, ok
}

// encoded records that chunk j was copied into a message. Remaining chunks go to the end of the
// queue, so that a large payload does not delay the others. last: this was the last chunk, and sent
// follows.
func (s *state) encoded(j job) (last bool) {
	o := j.op
	o.busy--
	if s.settle(o) {
		return false
	}
	j.chunk++
	if j.chunk < chunkCount(o.phases[j.phase].sends[j.send].size, s.cfg.ChunkBytes) {
		s.jobs.push(j)
		return false
	}
	return true
}

// sent records that the transport accepted the last chunk of one payload of operation id. The
// operation may have failed by then.
func (s *state) sent(id OpID) {
	o := s.ops[id]
	if o == nil {
		return
	}
	o.unsent--
	if o.at == o.count {
		s.advance(o)
	}
}

// settle completes a failed operation as soon as the shell uses none of its memory. over: it has
// failed.
func (s *state) settle(o *op) (over bool) {
	if !o.over {
		return false
	}
	if o.busy == 0 {
		s.finish(o, o.err)
	}
	return true
}

// tick fails the group if an operation is past its deadline. The earliest deadline counts.
func (s *state) tick(now int64) {
	var late *op
	for _, o := range s.ops {
		if now >= o.deadline && (late == nil || cmp.Or(cmp.Compare(o.deadline, late.deadline), cmp.Compare(o.id, late.id)) < 0) {
			late = o
		}
	}
	if late == nil || s.err != nil {
		return
	}
	e := &OpError{Op: late.id, Kind: late.phases[0].kind, Err: ErrTransport, Detail: "own messages could not be sent before the deadline"}
	if late.at < late.count {
		ph := &late.phases[late.at]
		e.Kind = ph.kind
		for r := range ph.in {
			if ph.in[r].want && ph.in[r].left > 0 {
				e.Ranks = append(e.Ranks, r)
			}
		}
	}
	if e.Ranks != nil {
		e.Err, e.Detail = ErrPeerTimeout, "did not deliver before the deadline"
	}
	s.fail(e)
}

// fail ends the group: every operation completes with err.
func (s *state) fail(err error) {
	if s.err != nil {
		return
	}
	s.err, s.notice, s.stats.Failed = err, true, true
	for {
		m, ok := s.replays.pop()
		if !ok {
			break
		}
		s.recycled.push(m.msg)
	}
	for id, held := range s.stash {
		for _, m := range held {
			s.recycled.push(m.msg)
		}
		delete(s.stash, id)
	}
	s.stashBytes = 0
	s.jobs.clear()
	for _, o := range s.combines.all() {
		o.busy--
	}
	s.combines.clear()
	pending := slices.SortedFunc(maps.Values(s.ops), func(a, b *op) int { return cmp.Compare(a.id, b.id) })
	clear(s.ops)
	for _, o := range pending {
		o.over, o.err = true, err
		s.settle(o)
	}
}

// finish queues done and keeps the op for reuse.
func (s *state) finish(o *op, err error) {
	s.dones.push(completion{o.done, err})
	o.reset()
	if len(s.free) < 64 {
		s.free = append(s.free, o)
	}
}

func (s *state) drop(d Drop) { s.stats.Dropped[d]++ }
