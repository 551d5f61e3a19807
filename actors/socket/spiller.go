package socket

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// spiller moves rows of caches to files, behind what runs: one goroutine asks the executor for a
// copy of some of them, writes it, and asks for the next; when the file has all, the executor gives
// the rows up. Until then steps read them in memory. What the disk refuses is tried again later.
type spiller struct {
	*background
	scratch *tier.Scratch
	mu      sync.Mutex
	orders  []*proto.Spill // one a sequence
	some    chan struct{}  // there is an order
	done    map[uint64]int // blocks of sequences whose rows were given up; the executor's
}

func newSpiller(scratch *tier.Scratch, exec *layer.Executor, c *caches) *spiller {
	if scratch == nil {
		return nil
	}
	s := &spiller{background: newBackground(exec, c), scratch: scratch, some: make(chan struct{}, 1), done: map[uint64]int{}}
	s.goroutines.Go(s.run)
	return s
}

// close ends the goroutine, and waits for it unless the disk hangs.
func (s *spiller) close() {
	if s != nil {
		s.end()
	}
}

// order has a cache moved to a file; a second order for it has no effect.
func (s *spiller) order(seq uint64, blocks int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.orders, func(o *proto.Spill) bool { return o.Seq == seq }) {
		s.orders = append(s.orders, &proto.Spill{Seq: seq, Blocks: uint32(blocks)})
	}
	select {
	case s.some <- struct{}{}:
	default:
	}
}

func (s *spiller) run() {
	for {
		s.mu.Lock()
		var next *proto.Spill
		if len(s.orders) > 0 {
			next = s.orders[0]
		}
		s.mu.Unlock()
		wait := s.some
		var again <-chan time.Time
		if next != nil {
			ended := s.spill(next)
			s.mu.Lock()
			s.orders = slices.DeleteFunc(s.orders, func(o *proto.Spill) bool { return o == next })
			if !ended {
				s.orders = append(s.orders, next)
			}
			s.mu.Unlock()
			if ended {
				continue
			}
			wait, again = nil, time.After(tier.ScratchRest/5)
		}
		select {
		case <-s.quit:
			return
		case <-wait:
		case <-again:
		}
	}
}

// copied is what the executor copies at once, or a block.
const copied = 1 << 20

// spill moves one cache; false: the disk refuses.
func (s *spiller) spill(o *proto.Spill) (ended bool) {
	var size int64
	var g kvcache.Geometry
	var p *kvcache.Policy
	blocks := int(o.Blocks)
	if !s.on(o.Seq, func(own *kvcache.Store) bool {
		g, p = own.Geometry(), own.Policy()
		size = kvcache.FileBytes(g, blocks, p)
		return own.Spilled() == 0
	}) {
		return true
	}
	file, err := s.scratch.Create(size)
	if err != nil {
		return false
	}
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	sums, err := copyPages(file, g, p, blocks, func(buf []byte, at int64) (n int) {
		s.on(o.Seq, func(own *kvcache.Store) bool { n = own.CopyPages(buf, at, blocks); return true })
		return n
	})
	if err != nil {
		return errors.Is(err, errGone)
	}
	s.on(o.Seq, func(own *kvcache.Store) bool {
		if own.Spill(file, blocks, sums) == nil { // else it stays in memory
			file, s.done[o.Seq] = nil, blocks
		}
		return true
	})
	return true
}

// errGone means that a cache is gone whose rows were to lie in a file.
var errGone = errors.New("socket: the cache is gone")

// copyPages fills the file of so many blocks, piece by piece, and gives the checksums of its pages.
// next copies what comes at an offset; 0: nothing any more.
func copyPages(file *tier.Pages, g kvcache.Geometry, p *kvcache.Policy, blocks int, next func(buf []byte, at int64) int) (sums []uint32, err error) {
	buf := make([]byte, max(copied, tensor.BlockSlots*g.Layout.RowBytes()))
	for at, size := int64(0), kvcache.FileBytes(g, blocks, p); at < size; {
		n := next(buf, at)
		if n == 0 {
			return nil, errGone
		}
		if err := file.Write(buf[:n], at); err != nil {
			return nil, err
		}
		sums, at = kvcache.PageSums(sums, g, p, buf[:n]), at+int64(n)
	}
	return sums, nil
}

// on has the executor do something with a cache; false: it is not there, do says so, or the
// socket ends.
func (s *spiller) on(seq uint64, do func(own *kvcache.Store) bool) bool {
	return s.onExecutor(func() error {
		if q := s.caches.seqs[seq]; q == nil || q.own == nil || !q.own.Sealed() || !do(q.own) {
			return errGone
		}
		return nil
	}) == nil
}

// spilled are the caches that lie in files since it was last asked; the executor's.
func (s *spiller) spilled() (list []*proto.Spill) {
	if s == nil {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(s.done)) {
		list = append(list, &proto.Spill{Seq: id, Blocks: uint32(s.done[id])})
	}
	clear(s.done)
	return list
}

// figures are those of the files; nil: there are none.
func (s *spiller) figures() *proto.Scratch {
	if s == nil {
		return nil
	}
	f := s.scratch.Stats()
	return &proto.Scratch{Bytes: f.Used, Limit: f.Limit, Read: f.Read, Written: f.Wrote, Failed: f.Failed}
}

// limit is the most bytes of all files.
func (s *spiller) limit() int64 {
	if s == nil {
		return 0
	}
	return s.scratch.Limit()
}

// lost are the sequences of a step that this rank owns and whose files have failed.
func (e *epoch) lost(w *Work) (list []uint64) {
	for _, r := range w.Runs {
		if q := e.seqs[r.Seq]; q.owner == e.rank && q.own != nil && q.own.Lost() != nil {
			list = append(list, r.Seq)
		}
	}
	return list
}

// inFiles is how many blocks of each cache lie in files.
func (c *caches) inFiles() map[uint64]int {
	found := map[uint64]int{}
	for id, q := range c.seqs {
		if q.own != nil && q.own.Spilled() > 0 {
			found[id] = q.own.Spilled()
		}
	}
	return found
}
