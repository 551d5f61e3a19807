package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Caches is the access to an epoch's caches for a job between steps. It is valid until the job returns.
type Caches struct {
	e    *epoch
	made map[uint64]*machine.Kept
}

// Arena returns the arena of all caches.
func (c *Caches) Arena() *kvcache.Arena { return c.e.arena }

func (c *Caches) Geometry() kvcache.Geometry { return c.e.geometry }

// Pool returns the socket's worker pool.
func (c *Caches) Pool() *tensor.Pool { return c.e.pool }

func (c *Caches) Config() *model.Config { return &c.e.config }

// Prompt returns this socket's rows of a prompt during prefill, and the statistics for its policy.
func (c *Caches) Prompt(seq uint64) (*kvcache.Store, *kvcache.Observation, error) {
	q := c.e.seqs[seq]
	if q == nil || q.promptShard == nil {
		return nil, nil, fmt.Errorf("socket: sequence %d has no prompt in prefill on this socket", seq)
	}
	return q.promptShard, q.stats, nil
}

// Compress hands a prompt over to a cache with another policy and returns that cache. All of the
// prompt's heads must be on this socket, even if other sockets take part in prefill. A policy that
// keeps every row moves the rows instead of copying them, so the prompt loses them.
func (c *Caches) Compress(part *kvcache.Store, seen *kvcache.Observation, p *kvcache.Policy) (*kvcache.Store, error) {
	e := c.e.singleSocket()
	if have := part.Heads(); have.Lo != 0 || have.Hi != e.geometry.KVHeads {
		return nil, fmt.Errorf("socket: this socket has KV heads [%d, %d) of %d of the prompt, compression needs all", have.Lo, have.Hi, e.geometry.KVHeads)
	}
	q := &sequence{prompt: part.Tokens(), policy: p, promptShard: part, stats: seen, cache: kvcache.NewStore(e.arena, e.geometry, p)}
	adopted := noHeads
	if p.KeepsAll() {
		adopted = part.Heads()
	}
	err := q.cache.Open(q.prompt, q.prompt, adopted)
	h := &handover{epoch: e, seqs: []*sequence{q}, heads: topology.Range{Hi: e.geometry.KVHeads}}
	for layer := 0; err == nil && layer < e.geometry.Layers; layer++ {
		h.start(layer, func(failed error) { err = failed })
		if err == nil {
			err = h.finish(layer)
		}
	}
	if err == nil {
		err = q.cache.SealOn(e.pool.Run, e.ropesUntil(q.prompt))
	}
	if err != nil {
		q.cache.Release()
		return nil, err
	}
	return q.cache, nil
}

// singleSocket returns the epoch as if this socket had all heads.
func (e *epoch) singleSocket() *epoch {
	if len(e.place.Slices) == 1 {
		return e
	}
	of := *e
	of.rank, of.place.Slices = 0, []topology.Slice{{KVHeads: topology.Range{Hi: e.geometry.Cut()}}}
	return &of
}

// Spill moves the rows of a whole cache to a file, if the socket has a disk for them and the cache is
// large enough. Unlike the spiller it waits for the disk.
func (c *Caches) Spill(own *kvcache.Store) error {
	s, g, p := c.e.spiller, own.Geometry(), own.Policy()
	blocks := kvcache.Spillable(g, own.Prompt(), own.Tokens(), p)
	if s == nil || blocks == 0 {
		return nil
	}
	file, err := s.scratch.Create(kvcache.FileBytes(g, blocks, p))
	if err != nil {
		return err
	}
	sums, err := copyPages(file, g, p, blocks, func(buf []byte, at int64) int { return own.CopyPages(buf, at, blocks) })
	if err == nil {
		err = own.Spill(file, blocks, sums)
	}
	if err != nil {
		file.Close()
	}
	return err
}

// Keep adds a whole cache to the socket, as if an earlier epoch had left it. A plan can continue with
// it by an Open with Resume. Keep frees the socket's previous cache of the sequence.
func (c *Caches) Keep(seq uint64, own *kvcache.Store) {
	c.e.release([]machine.Effect{{Do: machine.DoRelease, Seq: seq}})
	c.e.seqs[seq] = &sequence{id: seq, replica: plan.None, cache: own}
	c.made[seq] = &machine.Kept{Prompt: own.Prompt(), Tokens: own.Tokens(), Policy: own.Policy()}
}
