package caches

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// files moves blocks of the prefix cache between memory and disk. One goroutine writes and one
// reads, so the socket's actor and its executor never wait for a disk. Each block is copied through
// a buffer, so that no memory of the arena is held during disk I/O.
type files struct {
	*background
	store  *tier.Store
	reads  chan func()
	writes chan offer
	form   tier.Form // form of the epoch's blocks; used by the executor only
	states tier.Form // form of their snapshots

	indexes *indexes
}

// offer is a block in memory that the disk may store.
type offer struct {
	id          uint64
	at          int
	key, before tier.Key
	form        tier.Form
	snapshot    bool // it is the block's snapshot
}

// ofSnapshot returns the offer of a block's snapshot, which has a file of its own.
func (o offer) ofSnapshot(form tier.Form) offer {
	return offer{id: o.id, at: o.at, key: snapshotKey(o.key), before: o.key, form: form, snapshot: true}
}

func snapshotKey(block tier.Key) tier.Key {
	return sha256.Sum256(append([]byte("shoal snapshot 1\x00"), block[:]...))
}

const (
	waitingReads  = 16
	waitingWrites = 4096 // blocks of 64 tokens each
)

func newFiles(store *tier.Store, exec *executor.Executor, c *Caches) *files {
	if store == nil {
		return nil
	}
	f := &files{background: newBackground(exec, c), store: store, reads: make(chan func(), waitingReads),
		writes: make(chan offer, waitingWrites)}
	f.goroutines.Go(func() { f.runAll(f.reads) })
	f.goroutines.Go(f.write)
	f.indexes = newIndexes(f)
	return f
}

// close ends the goroutines and waits for them, for at most stopTimeout.
func (f *files) close() {
	if f != nil {
		f.end()
	}
}

// maxRead is the maximum time of a read, also for requests with a longer deadline.
const maxRead = 10 * time.Second

// begin starts an epoch. It looks for files of other processes.
func (f *files) begin(e *Epoch) {
	e.Form.HeadBytes = kvcache.HeadBytes(e.Geometry)
	if e.Geometry.Recurrent.Layers > 0 {
		e.States.HeadBytes = kvcache.StatesHeadBytes(e.Geometry)
	}
	if f != nil {
		e.Form.Hash = kvcache.Form(e.Geometry)
		if e.States.HeadBytes > 0 {
			e.States.Hash = sha256.Sum256(fmt.Appendf(nil, "recurrent states after %d layers of rows, %d heads, %+v", e.Geometry.Layers,
				e.Geometry.KVHeads, e.Geometry.Recurrent))
		}
		f.exec.Submit(func() { f.form, f.states = e.Form, e.States })
		f.read(f.store.Rescan)
	}
}

// read queues a job for the reader. It returns false if the queue is full or the reader has ended.
func (f *files) read(do func()) bool {
	select {
	case f.reads <- do:
		return true
	default:
		return false
	}
}

// keep offers blocks to the disk. The executor calls it. keys are as in plan.Run.
func (f *files) keep(from int, blocks []uint64, keys []plan.Key) {
	if f == nil || len(keys) != len(blocks)+1 {
		return
	}
	for i, id := range blocks {
		f.offer(offer{id: id, at: from + i, before: tier.Key(keys[i]), key: tier.Key(keys[i+1]), form: f.form})
	}
}

// offer queues a block for the writer, unless the disk has it.
func (f *files) offer(o offer) {
	b := f.caches.blocks[o.id]
	if b == nil || !f.store.Lacks(o.key, o.at, b.Heads()) {
		return
	}
	f.caches.identities(o)[o.id] = o
	select {
	case f.writes <- o:
	default:
		f.store.Drop()
	}
}

// keepSnapshot offers the snapshot of a block to the disk; the last key is the block's. The executor calls it.
func (f *files) keepSnapshot(at int, id uint64, keys []plan.Key) {
	if f == nil || len(keys) == 0 {
		return
	}
	f.offer(offer{id: id, at: at, key: tier.Key(keys[len(keys)-1])}.ofSnapshot(f.states))
}

// identities returns the identities in files of all blocks, or of all snapshots if o is a snapshot.
func (c *Caches) identities(o offer) map[uint64]offer {
	if o.snapshot {
		return c.snapshots
	}
	return c.named
}

// offerAgain offers blocks that are in use and that the disk may have lost or never had.
func (f *files) offerAgain(blocks []uint64) {
	if f == nil {
		return
	}
	for _, id := range blocks {
		if o, ok := f.caches.named[id]; ok {
			f.offer(o)
		}
		if o, ok := f.caches.snapshots[id]; ok {
			f.offer(o)
		}
	}
}

func keyAt(keys []byte, i int) tier.Key { return tier.Key(keys[i*sha256.Size:]) }

// write is the writer goroutine. The executor copies one block at a time for it.
func (f *files) write() {
	var rows []byte
	for {
		var o offer
		select {
		case <-f.quit:
			return
		case o = <-f.writes:
		}
		var heads tensor.Span
		copied := f.onExecutor(func() error {
			b := f.caches.blocks[o.id]
			if b == nil || f.caches.identities(o)[o.id] != o || o.snapshot && !b.HasStates() {
				return errEvicted
			}
			heads = b.Heads()
			if o.snapshot {
				rows = b.AppendStates(rows[:0])
			} else {
				rows = b.Append(rows[:0])
			}
			return nil
		})
		if copied == nil {
			f.store.Write(o.key, o.before, o.at, heads, o.form, rows)
		}
	}
}

// restore reads blocks until one is missing or the deadline has passed. It replies with their number.
func (f *files) restore(list []*incoming, until time.Time, reply func(blocks int)) {
	var rows []byte
	n := 0
	for _, x := range list {
		if rows == nil {
			rows = make([]byte, x.heads.Len()*x.named.form.HeadBytes)
		}
		if time.Now().After(until) || !f.store.Read(x.named.key, x.at, x.heads, x.named.form, rows) ||
			!f.readSnapshot(x) || !f.arrive(x, rows, until) {
			break
		}
		n++
	}
	reply(n)
}

// readSnapshot reads the snapshot that comes with a block, if there is one. It returns false if it fails.
func (f *files) readSnapshot(x *incoming) bool {
	if !x.snapshot.snapshot {
		return true
	}
	x.states = make([]byte, x.heads.Len()*x.snapshot.form.HeadBytes)
	return f.store.Read(x.snapshot.key, x.at, x.heads, x.snapshot.form, x.states)
}

// figures returns the statistics of the files, or nil if there are none.
func (f *files) figures() *proto.PrefixDisk {
	if f == nil {
		return nil
	}
	s := f.store.Stats()
	return &proto.PrefixDisk{Bytes: s.Bytes, Limit: s.Limit, Blocks: uint64(s.Blocks), Written: s.Written, Read: s.Read, Dropped: s.Dropped,
		Damaged: s.Damaged, Failed: s.Failed, Removed: s.Out,
		IndexesComputed: f.indexes.computed.Load(), IndexesRead: f.indexes.read.Load()}
}
