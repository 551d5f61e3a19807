package caches

import (
	"crypto/sha256"
	"time"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Options are the resources of a socket's caches.
type Options struct {
	Arena      *memory.Arena
	Executor   *executor.Executor
	PrefixDisk *tier.Store   // files of the prefix cache; nil: none
	Scratch    *tier.Scratch // files of rows that do not fit in memory; nil: none
}

// New returns empty caches and starts the goroutines that transfer rows while steps run.
func New(o Options) *Caches {
	c := &Caches{Arena: o.Arena, exec: o.Executor, Seqs: map[uint64]*Sequence{}, blocks: map[uint64]*kvcache.Segment{},
		arrivals: map[uint64]*arrival{}, incoming: map[uint64]*incoming{}, named: map[uint64]offer{}, snapshots: map[uint64]offer{}}
	c.files = newFiles(o.PrefixDisk, o.Executor, c)
	c.fetcher = newFetcher(o.Executor, c)
	c.spiller = newSpiller(o.Scratch, o.Executor, c)
	c.taker = newTaker(o.Executor, c)
	c.saver = newSaver(o.Scratch, o.Executor, c)
	return c
}

// StopTransfers ends the goroutines of New. The executor must still be running.
func (c *Caches) StopTransfers() {
	c.files.close()
	c.fetcher.end()
	c.spiller.close()
	c.taker.close()
	c.saver.close()
}

// Close frees the arena and the draft model. The transfers and the executor must have ended.
func (c *Caches) Close() {
	c.constraints.Close()
	c.Arena.Close()
	if c.Drafter != nil {
		c.Drafter.Close()
	}
}

// HasPrefixDisk reports whether blocks of the prefix cache are stored in files.
func (c *Caches) HasPrefixDisk() bool { return c.files != nil }

// PrefixDisk returns the statistics of the prefix cache's files, or nil if there are none.
func (c *Caches) PrefixDisk() *proto.PrefixDisk { return c.files.figures() }

// Scratch returns the statistics of the files with rows, or nil if there are none.
func (c *Caches) Scratch() *proto.Scratch {
	m := c.spiller.figures()
	c.saver.fillSaved(m)
	return m
}

// ScratchLimit returns the maximum total size of the files with rows, in bytes.
func (c *Caches) ScratchLimit() int64 { return c.spiller.limit() }

// TakeSpilled lists the caches that moved to files since its last call.
func (c *Caches) TakeSpilled() []*proto.Spill { return c.spiller.spilled() }

// Begin starts an epoch: its blocks have the form of its geometry in files.
func (c *Caches) Begin(e *Epoch) { c.files.begin(e) }

// Forget deletes the files of the prefix cache and calls done. It returns false if the disk is busy.
func (c *Caches) Forget(done func()) bool {
	if c.files == nil {
		done()
		return true
	}
	return c.files.read(func() { c.files.store.Forget(); done() })
}

// InFiles returns how many blocks of a text, from block number from on, are in files with this rank's
// heads. keys has the key of the block before and then one of each block. With recurrent states the last
// of these blocks has a snapshot.
func (e *Epoch) InFiles(keys []byte, from int) int {
	if e.files == nil {
		return 0
	}
	list := make([]tier.Key, len(keys)/sha256.Size-1)
	for i := range list {
		list[i] = keyAt(keys, i+1)
	}
	heads := e.PromptHeads(plan.None)
	n := e.files.store.Has(list, from, heads)
	for e.States.HeadBytes > 0 && n > 0 && e.files.store.Has([]tier.Key{snapshotKey(list[n-1])}, from+n-1, heads) == 0 {
		n--
	}
	return n
}

// ReadFiles reads the blocks of a request from files. reply gets the number of blocks that arrived, 0 if
// the disk is busy.
func (e *Epoch) ReadFiles(r *proto.PrefixRequest, reply func(blocks int)) {
	if e.files == nil {
		reply(0)
		return
	}
	list, until := e.expect(r)
	if !e.files.read(func() { e.files.restore(list, until, reply) }) {
		reply(0)
	}
}

// Fetch fetches the blocks of a request from the owner of its sequence. reply gets the number of blocks
// that arrived, 0 if too many requests are waiting.
func (e *Epoch) Fetch(l *Link, r *proto.PrefixRequest, reply func(blocks int)) {
	list, until := e.expect(r)
	if !e.fetcher.fetch(l, r, list, until, reply) {
		reply(0)
	}
}

// expect records the blocks that will be read, and returns the deadline.
func (e *Epoch) expect(r *proto.PrefixRequest) (list []*incoming, until time.Time) {
	heads := e.PromptHeads(plan.None)
	for i, id := range r.Blocks {
		at := int(r.From) + i
		list = append(list, &incoming{at: at, heads: heads, g: e.Geometry,
			named: offer{id: id, at: at, before: keyAt(r.Keys, i), key: keyAt(r.Keys, i+1), form: e.Form}})
	}
	if n := len(list); n > 0 && e.States.HeadBytes > 0 {
		list[n-1].snapshot = list[n-1].named.ofSnapshot(e.States)
	}
	e.exec.Submit(func() {
		for _, x := range list {
			e.incoming[x.named.id] = x
		}
	})
	return list, time.Now().Add(min(time.Duration(r.Millis)*time.Millisecond*4/5, maxRead)) // leave time for the reply
}
