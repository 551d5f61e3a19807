package socket

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// answers brings rows of sequences that have ended from their owners to the sockets of the
// heads, beside the steps: each socket asks for its own, a piece at a time, and leaves as much
// time between two pieces as one takes, so that at most half of the wire goes to what nobody
// waits for. What is lost is asked for again until the time is over.
type answers struct {
	*background
	jobs chan func() // of the goroutine that asks
	asks chan asking

	mu    sync.Mutex
	given [2]given // the newest blocks, of all heads, since several ranks ask for the same
	next  int
}

// line is an epoch's way to the other ranks.
type line struct {
	to    *answers
	group atomic.Pointer[collective.Group]
	epoch *epoch
	over  chan struct{}
	came  chan piece
}

// asking is what another rank asks for: bytes of a block's rows of some heads, from an offset on.
type asking struct {
	line *line
	src  int
	rowsAt
}

type rowsAt struct {
	seq    uint64
	block  int // of its text
	heads  tensor.Span
	offset int
}

// piece is what came of it.
type piece struct {
	src int
	rowsAt
	rows []byte
}

// given is a block of a sequence on its owner.
type given struct {
	line  *line
	seq   uint64
	block int
	rows  []byte
}

const (
	waitingAsks = 64
	waitingJobs = 16
	pieceBytes  = 32 << 10              // of rows in a post
	askedAgain  = 50 * time.Millisecond // and then after twice as long, at most
	askedLast   = 400 * time.Millisecond
)

func newAnswers(exec *layer.Executor, c *caches) *answers {
	a := &answers{background: newBackground(exec, c), jobs: make(chan func(), waitingJobs), asks: make(chan asking, waitingAsks)}
	a.goroutines.Go(func() { a.doAll(a.jobs) })
	a.goroutines.Go(func() {
		for {
			select {
			case <-a.quit:
				return
			case r := <-a.asks:
				a.give(r)
			}
		}
	})
	return a
}

// open begins an epoch's line, which closes with it.
func (a *answers) open(e *epoch) *line {
	return &line{to: a, epoch: e, over: make(chan struct{}), came: make(chan piece, 4)}
}

func (l *line) close() {
	if l != nil {
		close(l.over)
	}
}

// bring queues blocks of a sequence; tell learns how many came. false: too many wait.
func (a *answers) bring(l *line, r *proto.PrefixRequest, list []*coming, until time.Time, tell func(int)) bool {
	select {
	case a.jobs <- func() { tell(a.restore(l, r.Seq, int(r.Owner), list, until)) }:
		return true
	default:
		return false
	}
}

// restore brings blocks in until one does not come.
func (a *answers) restore(l *line, seq uint64, owner int, list []*coming, until time.Time) (n int) {
	var rows []byte
	for _, x := range list {
		w := rowsAt{seq: seq, block: x.at, heads: x.heads}
		switch size := x.heads.Len() * x.named.form.HeadBytes; {
		case owner == l.epoch.rank:
			rows = a.own(l, w)
		case len(rows) != size:
			rows = make([]byte, size)
			fallthrough
		default:
			if !a.ask(l, w, owner, rows, x, until) {
				rows = nil
			}
		}
		if rows == nil || !a.arrive(x, rows, until) {
			break
		}
		a.keepFile(x)
		n++
	}
	return n
}

// keepFile offers a block that came to the disk, as one that a prompt has saved.
func (a *answers) keepFile(x *coming) {
	if f := a.caches.files; f != nil {
		a.exec.Submit(func() { f.offer(x.named) })
	}
}

// ask brings the rows of a block, piece by piece.
func (a *answers) ask(l *line, w rowsAt, owner int, rows []byte, x *coming, until time.Time) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for w.offset < len(rows) {
		began := time.Now()
		if !a.piece(l, &w, owner, rows, x, until) {
			return false
		}
		timer.Reset(time.Since(began))
		select {
		case <-timer.C:
		case <-l.over:
			return false
		case <-a.quit:
			return false
		}
	}
	return true
}

// piece asks for the next piece until it comes.
func (a *answers) piece(l *line, w *rowsAt, owner int, rows []byte, x *coming, until time.Time) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for again := askedAgain; ; again = min(2*again, askedLast) {
		g := l.group.Load()
		if time.Now().After(until) || g == nil || g.Post(owner, putAsk(w)) != nil {
			return false
		}
		for timer.Reset(again); ; {
			select {
			case p := <-l.came:
				if p.src != owner || p.rowsAt != *w {
					continue // of an earlier ask
				}
				w.offset += copy(rows[w.offset:], p.rows)
				return len(p.rows) > 0 && w.offset == min(len(rows), p.offset+pieceBytes)
			case <-timer.C:
			case <-l.over:
				return false
			case <-a.quit:
				return false
			}
			break
		}
		if a.onExecutor(func() error { return a.caches.expects(x) }) != nil {
			return false
		}
	}
}

// expects says whether a block is still to come.
func (c *caches) expects(x *coming) error {
	if c.coming[x.named.id] != x {
		return errEvicted
	}
	return nil
}

// give answers another rank; with no rows if there are none.
func (a *answers) give(r asking) {
	rows := a.own(r.line, r.rowsAt)
	if g := r.line.group.Load(); g != nil {
		rows = rows[min(len(rows), r.offset):]
		_ = g.Post(r.src, putRows(&r.rowsAt, rows[:min(len(rows), pieceBytes)])) // or it asks again
	}
}

// own are a block's rows of some heads, of a sequence that this socket owns; nil: it has none.
func (a *answers) own(l *line, w rowsAt) []byte {
	size, heads := l.epoch.form.HeadBytes, l.epoch.geometry.KVHeads
	if w.heads.Lo < 0 || w.heads.Len() < 1 || w.heads.Hi > heads {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.given {
		if g.line == l && g.seq == w.seq && g.block == w.block {
			return g.rows[w.heads.Lo*size : w.heads.Hi*size]
		}
	}
	rows := make([]byte, heads*size)
	err := a.onExecutor(func() error {
		q := a.caches.seqs[w.seq]
		if q == nil || q.own == nil {
			return errEvicted
		}
		b, err := q.own.Share(w.block)
		if err != nil {
			return err
		}
		b.Bytes(rows)
		b.Release()
		return nil
	})
	if err != nil {
		return nil
	}
	a.given[a.next] = given{l, w.seq, w.block, rows}
	a.next = (a.next + 1) % len(a.given)
	return rows[w.heads.Lo*size : w.heads.Hi*size]
}

// posted takes what another rank posts.
func (l *line) posted(src int, payload []byte) {
	w, rows, ask, ok := parsePost(payload)
	switch {
	case !ok:
	case ask:
		select {
		case l.to.asks <- asking{l, src, w}:
		default: // it asks again
		}
	default:
		select {
		case l.came <- piece{src, w, append([]byte(nil), rows...)}:
		default:
		}
	}
}

// A post asks, or gives rows; the numbers of rowsAt say which, and the rows follow.
const (
	postAsks  = 1
	postGives = 2
	postBytes = 1 + 8 + 4*4
)

func putPost(kind byte, w *rowsAt, rows []byte) []byte {
	b := make([]byte, 1, postBytes+len(rows))
	b[0] = kind
	b = binary.LittleEndian.AppendUint64(b, w.seq)
	for _, n := range [...]int{w.block, w.heads.Lo, w.heads.Hi, w.offset} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return append(b, rows...)
}

func putAsk(w *rowsAt) []byte               { return putPost(postAsks, w, nil) }
func putRows(w *rowsAt, rows []byte) []byte { return putPost(postGives, w, rows) }

func parsePost(b []byte) (w rowsAt, rows []byte, ask, ok bool) {
	if len(b) < postBytes || len(b) > postBytes+pieceBytes || b[0] != postAsks && b[0] != postGives || b[0] == postAsks && len(b) > postBytes {
		return w, nil, false, false
	}
	w.seq = binary.LittleEndian.Uint64(b[1:])
	for i, n := range [...]*int{&w.block, &w.heads.Lo, &w.heads.Hi, &w.offset} {
		v := binary.LittleEndian.Uint32(b[9+4*i:])
		if v > 1<<31-1 {
			return w, nil, false, false
		}
		*n = int(v)
	}
	return w, b[postBytes:], b[0] == postAsks, true
}
