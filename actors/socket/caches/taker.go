package caches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/transfer"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// taker takes whole caches from sockets of the prefill group, or from files of idle sessions, while steps
// run. For each cache, one goroutine fetches one piece after another, and another has the executor store
// them. One piece is stored at a time, followed by a pause of the same duration, so that steps keep half of
// the executor's time.
type taker struct {
	*background
	ctx    context.Context
	cancel context.CancelFunc
	turn   chan struct{}
	reads  chan struct{} // holds a value for each file that is being read
}

// Order is a cache to take.
type Order struct {
	Request *proto.TakeRequest
	Policy  *kvcache.Policy
	Until   time.Time // deadline
	// FetchRows requests rows from the source. It may be called until Done. nil: the cache is in a file.
	FetchRows func(context.Context, *proto.RowsRequest) (*proto.RowsReply, error)
	// Done is called once, from any goroutine, with the bytes of the rows. Without an error the cache is
	// in Seqs, unless it was released.
	Done func(bytes int64, err error)
}

// arrival is a cache that is being taken.
type arrival struct {
	Order
	epoch  *Epoch
	ctx    context.Context
	cancel context.CancelFunc
	store  *kvcache.Store // used by the executor only; nil: it has no memory yet
	pieces []piece
	file   *tier.SavedReader // file of the cache; nil: the cache comes from a socket
}

// piece is a part of a cache, with the size of its body.
type piece struct {
	rowblock.Block
	bytes int
}

const (
	takeBytes   = 512 << 10 // maximum bytes of rows in one message
	lendBytes   = 1 << 30   // maximum bytes of a block that can be lent
	lentBodies  = 4         // maximum number of them that are kept
	takeTimeout = 5 * time.Second
	roomRetry   = 10 * time.Millisecond // interval between attempts to get memory
	takeReads   = 2                     // files that are read at once: each has up to three pieces in memory
)

var errReleased = errors.New("socket: the sequence was released while its cache was taken")

func newTaker(exec *executor.Executor, c *Caches) *taker {
	t := &taker{background: newBackground(exec, c), turn: make(chan struct{}, 1), reads: make(chan struct{}, takeReads)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

func (t *taker) close() {
	t.cancel()
	t.end()
}

// end frees the rows that have arrived. Only the executor calls it.
func (x *arrival) end() {
	x.cancel()
	if x.store != nil {
		x.store.Release()
	}
}

// Take begins to take a cache.
func (e *Epoch) Take(o Order) {
	t := e.taker
	x := &arrival{Order: o, epoch: e}
	x.ctx, x.cancel = context.WithDeadline(t.ctx, o.Until)
	e.exec.Submit(func() { e.arrivals[o.Request.Seq] = x }) // before a release that follows
	t.goroutines.Go(func() {
		defer x.cancel()
		bytes, err := t.take(x)
		if err != nil {
			_ = t.onExecutor(func() error {
				if e.arrivals[o.Request.Seq] == x {
					delete(e.arrivals, o.Request.Seq)
					x.end()
				}
				return nil
			})
			err = fmt.Errorf("socket: sequence %d from %s: %w", o.Request.Seq, cmp.Or(o.Request.Address, "a file"), err)
		}
		o.Done(bytes, err)
	})
}

// take fetches all pieces of a cache.
func (t *taker) take(x *arrival) (bytes int64, err error) {
	if err := t.open(x); err != nil {
		return 0, err
	}
	if len(x.Request.Saved) > 0 {
		select {
		case t.reads <- struct{}{}:
		case <-x.ctx.Done():
			return 0, context.Cause(x.ctx)
		}
		if err := t.openSaved(x); err != nil {
			<-t.reads
			return 0, err
		}
	}
	bodies := make(chan fetchedPiece, 1)
	t.goroutines.Go(func() {
		x.fetchAll(bodies)
		if x.file != nil {
			x.file.Close()
			<-t.reads
		}
	})
	for i, p := range x.pieces {
		var got fetchedPiece
		select {
		case got = <-bodies:
		case <-x.ctx.Done():
			got.err = context.Cause(x.ctx)
		}
		if got.err != nil {
			return 0, fmt.Errorf("piece %d of %d: %w", i+1, len(x.pieces), got.err)
		}
		bytes += int64(len(got.body))
		if err := t.put(x, p, got.body); err != nil {
			return 0, err
		}
	}
	return bytes, t.current(x, func() error {
		if err := x.store.SealOn(x.epoch.Parallel, nil); err != nil {
			return err
		}
		r := x.Request
		t.caches.Seqs[r.Seq] = &Sequence{ID: r.Seq, Replica: plan.None, Cache: x.store}
		delete(t.caches.arrivals, r.Seq)
		return nil
	})
}

// put stores a piece in the turn of its cache.
func (t *taker) put(x *arrival, p piece, body []byte) error {
	select {
	case t.turn <- struct{}{}:
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
	defer func() { <-t.turn }()
	var took time.Duration
	err := t.current(x, func() error {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		return x.store.WriteRows(p.Block, body)
	})
	select {
	case <-time.After(took):
	case <-x.ctx.Done():
	}
	return err
}

// current runs a job on the executor, unless the sequence was released.
func (t *taker) current(x *arrival, do func() error) error {
	return t.onExecutor(func() error {
		if t.caches.arrivals[x.Request.Seq] != x {
			return errReleased
		}
		return do()
	})
}

// open gets memory for a cache. The ledger has it, but the step that frees it may not have run yet.
func (t *taker) open(x *arrival) error {
	for {
		err := t.current(x, func() error {
			s, n := kvcache.NewStore(t.caches.Arena, x.epoch.Geometry, x.Policy), int(x.Request.Tokens)
			s.Score = x.epoch.Score
			if err := s.OpenMoved(cmp.Or(int(x.Request.Prompt), n), n); err != nil {
				return err
			}
			x.store, x.pieces = s, piecesOf(s, n)
			return nil
		})
		if !errors.Is(err, memory.ErrBudget) {
			return err
		}
		select {
		case <-time.After(roomRetry):
		case <-x.ctx.Done():
			return err
		}
	}
}

// fetchedPiece is the body of a piece.
type fetchedPiece struct {
	body []byte
	err  error
}

// fetchAll fetches all pieces in order, until one fails.
func (x *arrival) fetchAll(to chan<- fetchedPiece) {
	var bodies [3][]byte // one is stored, one waits and one arrives
	for i, p := range x.pieces {
		body, err := x.fetch(bodies[i%3][:0], p)
		bodies[i%3] = body
		select {
		case to <- fetchedPiece{body, err}:
		case <-x.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// fetch appends the body of a piece to dst.
func (x *arrival) fetch(dst []byte, p piece) ([]byte, error) {
	if x.file != nil {
		dst = slices.Grow(dst, p.bytes)[:p.bytes]
		return dst, x.file.Piece(dst)
	}
	r := x.Request
	q := &proto.RowsRequest{Epoch: r.Epoch, Seq: r.Source, Tokens: r.Tokens, Policy: x.Policy.Spec(), Block: p.Header(), Size: takeBytes}
	for len(dst) < p.bytes {
		q.From = uint32(len(dst))
		ctx, cancel := context.WithTimeout(x.ctx, takeTimeout)
		reply, err := x.FetchRows(ctx, q)
		cancel()
		if err != nil {
			return dst, err
		}
		if want := min(takeBytes, p.bytes-len(dst)); len(reply.Rows) != want || crc32c.Of(reply.Rows) != reply.Sum {
			return dst, fmt.Errorf("%w: %d bytes of %v with sum %08x, expected %d", rowblock.Err, len(reply.Rows), p.Block, reply.Sum, want)
		}
		dst = append(dst, reply.Rows...)
	}
	return dst, nil
}

// lent has the bodies of blocks that are longer than a message, the newest last: several sockets may take
// caches at once. Together they have at most lendBytes.
type lent []lentBody

type lentBody struct {
	seq   uint64
	block rowblock.Block
	body  []byte
}

// find returns the body of a block, or nil.
func (l lent) find(seq uint64, block rowblock.Block) []byte {
	for _, x := range l {
		if x.seq == seq && x.block == block {
			return x.body
		}
	}
	return nil
}

// add keeps a body, and drops the oldest bodies above the limits.
func (l *lent) add(x lentBody) {
	*l = append(*l, x)
	bytes := 0
	for i, x := range slices.Backward(*l) {
		if bytes += len(x.body); bytes > lendBytes || len(*l)-i > lentBodies {
			*l = slices.Delete(*l, 0, i+1)
			return
		}
	}
}

// drop removes a block that has been lent to its end.
func (l *lent) drop(seq uint64, block rowblock.Block) {
	*l = slices.DeleteFunc(*l, func(x lentBody) bool { return x.seq == seq && x.block == block })
}

func (l *lent) remove(seq uint64) {
	*l = slices.DeleteFunc(*l, func(x lentBody) bool { return x.seq == seq })
}

// Lend reads a part of a cache for another socket. Only the executor calls it.
func (c *Caches) Lend(r *proto.RowsRequest) (*proto.RowsReply, error) {
	q := c.Seqs[r.Seq]
	if q == nil || q.Cache == nil || !q.Cache.Sealed() || q.Cache.Tokens() != int(r.Tokens) {
		return nil, fmt.Errorf("socket: there is no complete cache of sequence %d with %d tokens", r.Seq, r.Tokens)
	}
	b, err := rowblock.Parse(r.Block)
	if err == nil {
		err = transfer.Check(q.Cache, int(r.Tokens), b)
	}
	if err != nil {
		return nil, err
	}
	body, size := []byte(nil), transfer.Body(q.Cache, b)
	switch {
	case r.Size == 0 || r.Size > takeBytes || int(r.From) >= size || size > lendBytes:
		return nil, fmt.Errorf("%w: %d bytes from byte %d of %v with %d", rowblock.Err, r.Size, r.From, b, size)
	}
	if body = c.lent.find(r.Seq, b); body == nil {
		if body, err = q.Cache.ReadRows(nil, b); err != nil {
			return nil, err
		}
		if size > int(r.Size) {
			c.lent.add(lentBody{r.Seq, b, body})
		}
	}
	if int(r.From)+int(r.Size) >= size {
		c.lent.drop(r.Seq, b)
	}
	body = body[r.From:min(size, int(r.From)+int(r.Size))]
	return &proto.RowsReply{Rows: body, Sum: crc32c.Of(body)}, nil
}
