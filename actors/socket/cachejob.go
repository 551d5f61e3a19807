package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Caches is what a job between steps may use of its socket's epoch, until it returns.
type Caches struct {
	e    *epoch
	made map[uint64]*Kept
}

// Arena has the bytes of all caches.
func (c *Caches) Arena() *kvcache.Arena { return c.e.arena }

func (c *Caches) Geometry() kvcache.Geometry { return c.e.geometry }

// Pool is the socket's worker pool.
func (c *Caches) Pool() *tensor.Pool { return c.e.pool }

func (c *Caches) Config() *model.Config { return &c.e.config }

// Prompt is what this socket holds of a prompt that is being read: its rows, and what
// its policy looks at.
func (c *Caches) Prompt(seq uint64) (*kvcache.Store, *kvcache.Observation, error) {
	q := c.e.seqs[seq]
	if q == nil || q.part == nil {
		return nil, nil, fmt.Errorf("socket: no prompt of sequence %d is being read here", seq)
	}
	return q.part, q.seen, nil
}

// Compress is the hand-over of a prompt that lies whole on this socket, whoever reads prompts
// with it, to a cache of another policy: what that keeps of it. The rows that it moves rather
// than copies (a policy that keeps all) are gone from the prompt.
func (c *Caches) Compress(part *kvcache.Store, seen *kvcache.Observation, p *kvcache.Policy) (*kvcache.Store, error) {
	e := c.e.lone()
	if have := part.Heads(); have.Lo != 0 || have.Hi != e.geometry.KVHeads {
		return nil, fmt.Errorf("socket: KV heads [%d, %d) of %d of a prompt lie here", have.Lo, have.Hi, e.geometry.KVHeads)
	}
	q := &sequence{prompt: part.Tokens(), policy: p, part: part, seen: seen, own: kvcache.NewStore(e.arena, e.geometry, p)}
	adopted := noHeads
	if p.KeepsAll() {
		adopted = part.Heads()
	}
	err := q.own.Open(q.prompt, q.prompt, adopted)
	h := &handover{epoch: e, seqs: []*sequence{q}, heads: topology.Range{Hi: e.geometry.KVHeads}}
	for layer := 0; err == nil && layer < e.geometry.Layers; layer++ {
		h.start(layer, func(failed error) { err = failed })
		if err == nil {
			err = h.finish(layer)
		}
	}
	if err == nil {
		err = q.own.SealOn(e.pool.Run, e.rope(q.prompt))
	}
	if err != nil {
		q.own.Release()
		return nil, err
	}
	return q.own, nil
}

// lone is the epoch as if no other socket held anything of it.
func (e *epoch) lone() *epoch {
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

// Keep gives the socket a whole cache, as if an earlier epoch had left it: a plan goes
// on with it by an Open with Resume. What the socket had of the sequence is dropped.
func (c *Caches) Keep(seq uint64, own *kvcache.Store) {
	c.e.release([]Effect{{Do: DoRelease, Seq: seq}})
	c.e.seqs[seq] = &sequence{id: seq, replica: none, own: own}
	c.made[seq] = &Kept{Prompt: own.Prompt(), Tokens: own.Tokens(), Policy: own.Policy()}
}
