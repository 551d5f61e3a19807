package caches

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/proto"
)

// spiller moves rows of caches to files while steps run. One goroutine has the executor copy some rows,
// writes the copy and continues with the next rows. When the file is complete, the executor frees the
// rows; until then steps read them in memory. After an error of the disk the spiller retries later.
type spiller struct {
	*background
	scratch *tier.Scratch
	mu      sync.Mutex
	orders  []*proto.Spill // at most one per sequence
	epochs  int            // number of forget calls; a move has no effect if forget was called after its start
	wake    chan struct{}  // signals a new order
	moved   map[uint64]int // blocks per sequence whose rows were freed; used by the executor only
}

func newSpiller(scratch *tier.Scratch, exec *executor.Executor, c *Caches) *spiller {
	if scratch == nil {
		return nil
	}
	s := &spiller{background: newBackground(exec, c), scratch: scratch, wake: make(chan struct{}, 1), moved: map[uint64]int{}}
	s.goroutines.Go(s.run)
	return s
}

// close ends the goroutine and waits for it, for at most stopTimeout.
func (s *spiller) close() {
	if s != nil {
		s.end()
	}
}

// order queues the move of a cache to a file. A second order for the same cache has no effect.
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
	case s.wake <- struct{}{}:
	default:
	}
}

// remove drops all orders, including the one in progress. Only the executor calls it.
func (s *spiller) remove() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = nil
	s.epochs++
}

// current returns the number of forget calls.
func (s *spiller) current() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs
}

func (s *spiller) run() {
	for {
		s.mu.Lock()
		var next *proto.Spill
		if len(s.orders) > 0 {
			next = s.orders[0]
		}
		epoch := s.epochs
		s.mu.Unlock()
		wait := s.wake
		var again <-chan time.Time
		if next != nil {
			ended := s.spill(next, epoch)
			s.mu.Lock()
			s.orders = slices.DeleteFunc(s.orders, func(o *proto.Spill) bool { return o == next })
			if ended = ended || s.epochs != epoch; !ended {
				s.orders = append(s.orders, next)
			}
			s.mu.Unlock()
			if ended {
				continue
			}
			wait, again = nil, time.After(tier.ScratchPause/5)
		}
		select {
		case <-s.quit:
			return
		case <-wait:
		case <-again:
		}
	}
}

// copyBytes is the number of bytes that the executor copies at once. It copies at least one block.
const copyBytes = 1 << 20

// spill moves one cache to a file. epoch is the number of forget calls before its start. It returns false
// if the file cannot be created or written: the order is then retried.
func (s *spiller) spill(o *proto.Spill, epoch int) (ended bool) {
	var size int64
	var g kvcache.Geometry
	var p *kvcache.Policy
	blocks := int(o.Blocks)
	if !s.withCache(o.Seq, func(own *kvcache.Store) bool {
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
	sums, err := copyPages(file, g, p, blocks, func(buf []byte, b rowblock.Block) ([]byte, error) {
		err := errGone
		s.withCache(o.Seq, func(own *kvcache.Store) bool { buf, err = own.ReadRows(buf, b); return true })
		return buf, err
	})
	if err != nil {
		return !errors.Is(err, tier.ErrScratch)
	}
	s.withCache(o.Seq, func(own *kvcache.Store) bool {
		if s.current() == epoch && own.Spill(file, blocks, sums) == nil { // after an error the cache stays in memory
			file, s.moved[o.Seq] = nil, blocks
		}
		return true
	})
	return true
}

// errGone reports that the cache was released while it moved to a file.
var errGone = errors.New("socket: the cache was released")

// copyPages fills the file of a cache with the given number of blocks, piece by piece, and returns the
// checksums of its pages. read is ReadRows of the cache.
func copyPages(file *tier.Pages, g kvcache.Geometry, p *kvcache.Policy, blocks int,
	read func(buf []byte, b rowblock.Block) ([]byte, error)) (sums []uint32, err error) {
	var buf []byte
	at := int64(0)
	for _, b := range kvcache.FileBlocks(g, p, blocks, copyBytes) {
		if buf, err = read(buf[:0], b); err == nil {
			err = file.Write(buf, at)
		}
		if err != nil {
			return nil, err
		}
		sums, at = kvcache.PageSums(sums, g, p, buf), at+int64(len(buf))
	}
	return sums, nil
}

// withCache runs do with a cache on the executor. It returns false if the cache does not exist, do
// returns false, or the socket ends.
func (s *spiller) withCache(seq uint64, do func(own *kvcache.Store) bool) bool {
	return s.onExecutor(func() error {
		if q := s.caches.Seqs[seq]; q == nil || q.Cache == nil || !q.Cache.Sealed() || !do(q.Cache) {
			return errGone
		}
		return nil
	}) == nil
}

// spilled lists the caches that moved to files since its last call. Only the executor calls it.
func (s *spiller) spilled() (list []*proto.Spill) {
	if s == nil {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(s.moved)) {
		list = append(list, &proto.Spill{Seq: id, Blocks: uint32(s.moved[id])})
	}
	clear(s.moved)
	return list
}

// figures returns the statistics of the files, or nil if there are none.
func (s *spiller) figures() *proto.Scratch {
	if s == nil {
		return nil
	}
	f := s.scratch.Stats()
	return &proto.Scratch{Bytes: f.Used, Limit: f.Limit, Read: f.Read, Written: f.Wrote, Failed: f.Failed}
}

// limit returns the maximum total size of all files, in bytes.
func (s *spiller) limit() int64 {
	if s == nil {
		return 0
	}
	return s.scratch.Limit()
}

// Lost lists the step's sequences that this rank owns and whose files have failed.
func (e *Epoch) Lost(w *machine.Work) (list []uint64) {
	for _, r := range w.Runs {
		if q := e.Seqs[r.Seq]; q.Owner == e.Rank && q.Cache != nil && q.Cache.Lost() != nil {
			list = append(list, r.Seq)
		}
	}
	return list
}

// BlocksInFiles returns the number of blocks in files for each cache. It cancels moves in progress, so that
// an epoch begins with the returned numbers; the batcher orders new moves. Only the executor calls it.
func (c *Caches) BlocksInFiles() map[uint64]int {
	c.spiller.remove()
	found := map[uint64]int{}
	for id, q := range c.Seqs {
		if q.Cache != nil && q.Cache.Spilled() > 0 {
			found[id] = q.Cache.Spilled()
		}
	}
	return found
}

// Spill moves the rows of a whole cache to a file, if the socket has a disk for them and the cache is
// large enough. Unlike the spiller it waits for the disk.
func (c *Caches) Spill(own *kvcache.Store) error {
	s, g, p := c.spiller, own.Geometry(), own.Policy()
	blocks := kvcache.Spillable(g, own.Prompt(), own.Tokens(), p)
	if s == nil || blocks == 0 {
		return nil
	}
	file, err := s.scratch.Create(kvcache.FileBytes(g, blocks, p))
	if err != nil {
		return err
	}
	sums, err := copyPages(file, g, p, blocks, own.ReadRows)
	if err == nil {
		err = own.Spill(file, blocks, sums)
	}
	if err != nil {
		file.Close()
	}
	return err
}
