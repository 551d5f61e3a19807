package caches

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// fetcher fetches cache rows of completed sequences from their owners, while steps run. Each
// socket fetches the rows of its own heads, piece by piece. After each piece it pauses for as long
// as the piece took, so that these transfers use at most half of the bandwidth. No request waits for
// them. Lost pieces are requested again until the deadline.
type fetcher struct {
	*background
	jobs     chan func() // jobs of the goroutine that fetches
	requests chan blockRequest

	mu     sync.Mutex
	recent [2]ownedBlock // the newest blocks with all heads, because several ranks request the same block
	next   int
}

// Link is an epoch's connection to the other ranks for these transfers.
type Link struct {
	to      *fetcher
	group   atomic.Pointer[collective.Group]
	epoch   *Epoch
	closed  chan struct{}
	replies chan blockReply
}

// blockRequest asks for bytes of a block's rows, for some heads, starting at an offset. Another rank
// sent it.
type blockRequest struct {
	link *Link
	src  int
	rowsAt
}

type rowsAt struct {
	seq    uint64
	block  int // number of the block in its text
	heads  tensor.Span
	states bool // the copy of the recurrent states after the block, instead of its rows
	offset int
}

// blockReply is the reply to a request.
type blockReply struct {
	src int
	rowsAt
	rows []byte
}

// ownedBlock is a block of a sequence that this rank owns.
type ownedBlock struct {
	link *Link
	rowsAt
	rows []byte
}

const (
	maxRequests  = 64
	maxFetchJobs = 16
	pieceBytes   = 32 << 10              // maximum bytes of rows per post
	minRetry     = 50 * time.Millisecond // first retry interval; it doubles up to maxRetry
	maxRetry     = 400 * time.Millisecond
)

func newFetcher(exec *executor.Executor, c *Caches) *fetcher {
	f := &fetcher{background: newBackground(exec, c), jobs: make(chan func(), maxFetchJobs), requests: make(chan blockRequest, maxRequests)}
	f.goroutines.Go(func() { f.runAll(f.jobs) })
	f.goroutines.Go(func() {
		for {
			select {
			case <-f.quit:
				return
			case r := <-f.requests:
				f.reply(r)
			}
		}
	})
	return f
}

// OpenLink returns an epoch's Link, which must be closed, and a function that receives the posts of the
// epoch's group (collective.Config.OnPost).
func (e *Epoch) OpenLink() (*Link, func(src int, payload []byte)) {
	l := &Link{to: e.fetcher, epoch: e, closed: make(chan struct{}), replies: make(chan blockReply, 4)}
	return l, l.posted
}

// Connect sets the group of the epoch. Until then the link sends nothing.
func (l *Link) Connect(g *collective.Group) { l.group.Store(g) }

// Close ends the transfers of the epoch. A nil Link has none.
func (l *Link) Close() {
	if l != nil {
		close(l.closed)
	}
}

// fetch queues the blocks of a sequence. It calls tell with the number of blocks that arrived. fetch
// returns false if the queue is full.
func (f *fetcher) fetch(l *Link, r *proto.PrefixRequest, list []*incoming, until time.Time, tell func(int)) bool {
	select {
	case f.jobs <- func() { tell(f.restore(l, r.Seq, int(r.Owner), list, until)) }:
		return true
	default:
		return false
	}
}

// restore fetches blocks in order until one fails.
func (f *fetcher) restore(l *Link, seq uint64, owner int, list []*incoming, until time.Time) (n int) {
	var rows []byte
	for _, x := range list {
		w := rowsAt{seq: seq, block: x.at, heads: x.heads}
		if rows = f.rowsOf(l, w, owner, rows, x, until); rows == nil {
			break
		}
		if x.snapshot.snapshot {
			w.states = true
			if x.states = f.rowsOf(l, w, owner, nil, x, until); x.states == nil {
				break
			}
		}
		if !f.arrive(x, rows, until) {
			break
		}
		f.keepFile(x)
		n++
	}
	return n
}

// rowsOf fetches rows, or returns them if this rank owns the sequence. It reuses the memory of earlier
// rows. It returns nil if it fails.
func (f *fetcher) rowsOf(l *Link, w rowsAt, owner int, rows []byte, x *incoming, until time.Time) []byte {
	if owner == l.epoch.Rank {
		rows, _ := f.ownedRows(l, w)
		return rows
	}
	if size := w.heads.Len() * w.headBytes(l.epoch); len(rows) != size {
		rows = make([]byte, size)
	}
	if !f.fetchBlock(l, w, owner, rows, x, until) {
		return nil
	}
	return rows
}

// headBytes returns the size of the rows, or states, of one head.
func (w *rowsAt) headBytes(e *Epoch) int {
	if w.states {
		return e.States.HeadBytes
	}
	return e.Form.HeadBytes
}

// keepFile offers a fetched block to the disk, as after a prompt has saved it.
func (f *fetcher) keepFile(x *incoming) {
	if files := f.caches.files; files != nil {
		f.exec.Submit(func() {
			files.offer(x.named)
			if x.snapshot.snapshot {
				files.offer(x.snapshot)
			}
		})
	}
}

// fetchBlock fetches the rows of a block, piece by piece.
func (f *fetcher) fetchBlock(l *Link, w rowsAt, owner int, rows []byte, x *incoming, until time.Time) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for w.offset < len(rows) {
		began := time.Now()
		if !f.fetchPiece(l, &w, owner, rows, x, until) {
			return false
		}
		timer.Reset(time.Since(began))
		select {
		case <-timer.C:
		case <-l.closed:
			return false
		case <-f.quit:
			return false
		}
	}
	return true
}

// fetchPiece requests the next piece until it arrives.
func (f *fetcher) fetchPiece(l *Link, w *rowsAt, owner int, rows []byte, x *incoming, until time.Time) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for again := minRetry; ; again = min(2*again, maxRetry) {
		g := l.group.Load()
		if time.Now().After(until) || g == nil || g.Post(owner, putRequest(w)) != nil {
			return false
		}
		for timer.Reset(again); ; {
			select {
			case p := <-l.replies:
				if p.src != owner || p.rowsAt != *w {
					continue // the reply to an earlier request
				}
				w.offset += copy(rows[w.offset:], p.rows)
				return len(p.rows) > 0 && w.offset == min(len(rows), p.offset+pieceBytes)
			case <-timer.C:
			case <-l.closed:
				return false
			case <-f.quit:
				return false
			}
			break
		}
		if f.onExecutor(func() error { return f.caches.stillIncoming(x) }) != nil {
			return false
		}
	}
}

// stillIncoming returns an error if a block is no longer being fetched.
func (c *Caches) stillIncoming(x *incoming) error {
	if c.incoming[x.named.id] != x {
		return errEvicted
	}
	return nil
}

// reply sends a reply to another rank. The reply has no rows if this rank does not have the block. There is no reply
// before the tokens of the block are committed: that request may come later than the other rank's, which asks again.
func (f *fetcher) reply(r blockRequest) {
	rows, soon := f.ownedRows(r.link, r.rowsAt)
	if soon {
		return
	}
	if g := r.link.group.Load(); g != nil {
		rows = rows[min(len(rows), r.offset):]
		_ = g.Post(r.src, putRows(&r.rowsAt, rows[:min(len(rows), pieceBytes)])) // after an error the other rank repeats its request
	}
}

// ownedRows returns a block's rows for some heads, of a sequence that this socket owns; nil if
// there are none. soon reports that the last step of the sequence wrote the end of the block, and is not committed.
func (f *fetcher) ownedRows(l *Link, w rowsAt) (out []byte, soon bool) {
	size, heads := w.headBytes(l.epoch), l.epoch.Geometry.KVHeads
	if w.heads.Lo < 0 || w.heads.Len() < 1 || w.heads.Hi > heads {
		return nil, false
	}
	all := w
	all.heads, all.offset = tensor.Span{}, 0
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.recent {
		if g.link == l && g.rowsAt == all {
			return g.rows[w.heads.Lo*size : w.heads.Hi*size], false
		}
	}
	rows := make([]byte, 0, heads*size)
	err := f.onExecutor(func() error {
		q := f.caches.Seqs[w.seq]
		if q == nil || q.Cache == nil {
			return errEvicted
		}
		end := (w.block + 1) * tensor.BlockSlots
		if soon = end > q.Cache.Tokens() && end <= q.Cache.Tokens()+q.Cache.Staged(); soon {
			return errEvicted
		}
		if w.states {
			var err error
			rows, err = q.Cache.AppendCopy(rows, w.block)
			return err
		}
		b, err := q.Cache.Share(w.block)
		if err != nil {
			return err
		}
		rows = b.Append(rows)
		b.Release()
		return nil
	})
	if err != nil {
		return nil, soon
	}
	f.recent[f.next] = ownedBlock{l, all, rows}
	f.next = (f.next + 1) % len(f.recent)
	return rows[w.heads.Lo*size : w.heads.Hi*size], false
}

// posted receives a post of another rank.
func (l *Link) posted(src int, payload []byte) {
	w, rows, ask, ok := parsePost(payload)
	switch {
	case !ok:
	case ask:
		select {
		case l.to.requests <- blockRequest{l, src, w}:
		default: // the queue is full: the rank repeats its request
		}
	default:
		select {
		case l.replies <- blockReply{src, w, append([]byte(nil), rows...)}:
		default:
		}
	}
}

// A post is a request or a reply. It has the numbers of rowsAt; in a reply the rows follow.
const (
	postRequest = 1
	postRows    = 2
	postStates  = 4 // flag of a post about states instead of rows
	postBytes   = 1 + 8 + 4*4
)

func putPost(kind byte, w *rowsAt, rows []byte) []byte {
	b := make([]byte, 1, postBytes+len(rows))
	if b[0] = kind; w.states {
		b[0] |= postStates
	}
	b = binary.LittleEndian.AppendUint64(b, w.seq)
	for _, n := range [...]int{w.block, w.heads.Lo, w.heads.Hi, w.offset} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(b, rows...)
}

func putRequest(w *rowsAt) []byte           { return putPost(postRequest, w, nil) }
func putRows(w *rowsAt, rows []byte) []byte { return putPost(postRows, w, rows) }

func parsePost(b []byte) (w rowsAt, rows []byte, ask, ok bool) {
	if len(b) < postBytes || len(b) > postBytes+pieceBytes {
		return w, nil, false, false
	}
	kind := b[0] &^ postStates
	if kind != postRequest && kind != postRows || kind == postRequest && len(b) > postBytes {
		return w, nil, false, false
	}
	w.states = b[0] != kind
	w.seq = binary.LittleEndian.Uint64(b[1:])
	for i, n := range [...]*int{&w.block, &w.heads.Lo, &w.heads.Hi, &w.offset} {
		v := binary.LittleEndian.Uint32(b[9+4*i:])
		if v > 1<<31-1 {
			return w, nil, false, false
		}
		*n = int(v)
	}
	return w, b[postBytes:], kind == postRequest, true
}
