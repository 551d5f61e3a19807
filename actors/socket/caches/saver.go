package caches

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/transfer"
	"github.com/shoal-llm/shoal/internal/proto"
)

// saver writes caches of idle sessions to files while steps run. A cache is copied in the pieces in which
// caches move between sockets. One goroutine has the executor copy a piece, writes it, and pauses for as
// long as the copy took, so that steps keep half of the executor's time. Another goroutine removes files.
type saver struct {
	*background
	store *tier.Saved
	saves chan func()
	other chan func()
}

// SaveOrder is an order to write the cache of a sequence to a file.
type SaveOrder struct {
	Request *proto.SavedRequest
	Effects func() error // commits the tokens of the request; the executor calls it first
	Until   time.Time    // deadline
	// Done gets the number of bytes, from any goroutine; with tier.ErrRoom the size of the file.
	Done func(bytes int64, err error)
}

const (
	waitingSaves = 16  // maximum length of saver.saves
	waitingDrops = 256 // maximum length of saver.other
	sweepEvery   = time.Minute
)

var errNoFiles = errors.New("socket: this socket has no folder for caches of idle sessions")

func newSaver(scratch *tier.Scratch, exec *executor.Executor, c *Caches) *saver {
	if scratch == nil || scratch.Saved() == nil {
		return nil
	}
	s := &saver{background: newBackground(exec, c), store: scratch.Saved(), saves: make(chan func(), waitingSaves),
		other: make(chan func(), waitingDrops)}
	s.goroutines.Go(func() { s.runAll(s.saves) })
	s.goroutines.Go(s.clean)
	return s
}

// close ends the goroutines and waits for them, for at most stopTimeout.
func (s *saver) close() {
	if s != nil {
		s.end()
	}
}

// clean removes files of sessions that have ended.
func (s *saver) clean() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
			s.store.Sweep()
		case do := <-s.other:
			do()
		}
	}
}

// SavedKey decodes the key of a session from a message. It returns an error if b does not have the length
// of a key.
func SavedKey(b []byte) (k tier.Key, err error) {
	if len(b) != len(k) {
		return k, fmt.Errorf("socket: a key of %d bytes names no session, want %d", len(b), len(k))
	}
	return tier.Key(b), nil
}

// FindSaved describes the cache of a session in a file. If there is none, the reply has no tokens. It does
// not wait for the disk.
func (c *Caches) FindSaved(k tier.Key) *proto.SavedReply {
	if c.saver == nil {
		return &proto.SavedReply{}
	}
	f, ok := c.saver.store.Find(k)
	if !ok {
		return &proto.SavedReply{}
	}
	return &proto.SavedReply{Prompt: uint32(f.Prompt), Tokens: uint32(f.Tokens), Digest: f.Digest[:]}
}

// DropSaved removes the cache of a session from the disk. It does not remove a cache that is written later. It
// calls done afterwards, from any goroutine, or at once with an error if too many wait for that.
func (c *Caches) DropSaved(k tier.Key, done func(error)) {
	if c.saver == nil {
		done(nil)
		return
	}
	files := c.saver.store.Remove(k)
	select {
	case c.saver.other <- func() { done(files()) }:
	default:
		done(fmt.Errorf("socket: the files of %d sessions wait to be removed", waitingDrops))
	}
}

// SaveIdle begins to write a cache to a file. It does not wait for the end of the write.
func (e *Epoch) SaveIdle(o SaveOrder) {
	s := e.saver
	if s == nil {
		o.Done(0, errNoFiles)
		return
	}
	e.exec.Submit(func() {
		if err := o.Effects(); err != nil {
			o.Done(0, err)
			return
		}
		select {
		case s.saves <- func() { o.Done(s.save(e, &o)) }:
		default:
			o.Done(0, fmt.Errorf("socket: the queue of writes is full: %d caches wait for the disk", waitingSaves))
		}
	})
}

// save writes one cache, and returns the bytes of its rows. A cache that is in a file already is not written again, such
// as that of a session that was idle when the epoch began.
func (s *saver) save(e *Epoch, o *SaveOrder) (bytes int64, err error) {
	r := o.Request
	c := tier.SavedCache{Key: tier.Key(r.Key), Digest: [32]byte(r.Digest), Tokens: int(r.Tokens), Until: s.store.Until(r.Millis)}
	var pieces []piece
	var from *kvcache.Store // the same in the sequence of the next epoch
	err = s.onExecutor(func() error {
		own := e.idleCache(r.Seq)
		if from = own; own == nil || !own.Sealed() || own.Staged() > 0 || own.Tokens() != c.Tokens || own.Spilled() > 0 {
			return fmt.Errorf("socket: sequence %d has no complete cache of %d tokens in memory", r.Seq, c.Tokens)
		}
		pieces = piecesOf(own, c.Tokens)
		c.Prompt, c.Form = own.Prompt(), savedForm(own.Geometry(), own.Policy())
		return nil
	})
	if err != nil {
		return 0, err
	}
	if bytes = bodies(pieces); s.store.Has(c) {
		return bytes, nil
	}
	w, err := s.store.Create(c, len(pieces), bytes)
	if err != nil {
		return tier.SavedBytes(len(pieces), bytes), err
	}
	defer w.Abort()
	var body []byte
	for _, p := range pieces {
		var took time.Duration
		err := s.onExecutor(func() (err error) {
			began := time.Now()
			defer func() { took = time.Since(began) }()
			// The next turn has it, or it was released, or it moved to a file.
			if e.idleCache(r.Seq) != from || from.Tokens() != c.Tokens || from.Spilled() > 0 {
				return errGone
			}
			body, err = from.ReadRows(body[:0], p.Block)
			return err
		})
		switch {
		case err != nil:
			return 0, err
		case time.Now().After(o.Until):
			return 0, context.DeadlineExceeded
		}
		if err := w.Piece(body); err != nil {
			return 0, err
		}
		select {
		case <-time.After(took):
		case <-s.quit:
			return 0, errEvicted
		}
	}
	return bytes, w.Commit()
}

// idleCache returns the cache of a sequence on this socket, which is its owner or has a replica, or nil if
// there is none. Only the executor calls it.
func (c *Caches) idleCache(seq uint64) *kvcache.Store {
	s := c.Seqs[seq]
	if s == nil {
		return nil
	}
	if s.Cache != nil {
		return s.Cache
	}
	return s.ReplicaCache
}

// piecesOf lists the pieces of a cache of this number of tokens.
func piecesOf(own *kvcache.Store, tokens int) (list []piece) {
	for b := range transfer.Pieces(own, tokens, takeBytes) {
		list = append(list, piece{b, transfer.Body(own, b)})
	}
	return list
}

// bodies returns the sum of the bytes of pieces.
func bodies(list []piece) (sum int64) {
	for _, p := range list {
		sum += int64(p.bytes)
	}
	return sum
}

// savedForm identifies the pieces of a cache and the layout of their rows.
func savedForm(g kvcache.Geometry, p *kvcache.Policy) [32]byte {
	g.Chunk = 0
	rows := kvcache.Form(g)
	return sha256.Sum256(fmt.Appendf(rows[:], "pieces of %d bytes, %+v, %s", takeBytes, g, p.Spec()))
}

// openSaved opens the file from which a cache is taken.
func (t *taker) openSaved(x *arrival) (err error) {
	s, r := t.caches.saver, x.Request
	if s == nil {
		return errNoFiles
	}
	c := tier.SavedCache{Key: tier.Key(r.Saved), Form: savedForm(x.epoch.Geometry, x.Policy), Digest: [32]byte(r.Digest),
		Prompt: int(r.Prompt), Tokens: int(r.Tokens)}
	x.file, err = s.store.Open(c, len(x.pieces), bodies(x.pieces))
	return err
}

// fillSaved sets the counters of saved caches in m.
func (s *saver) fillSaved(m *proto.Scratch) {
	if s == nil {
		return
	}
	f := s.store.Stats()
	m.SavedBytes, m.SavedCaches, m.SavedWritten, m.SavedRead, m.SavedRemoved, m.SavedFailed = f.Bytes, uint32(f.Caches), f.Written,
		f.Read, f.Removed, f.Failed
}
