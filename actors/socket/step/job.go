package step

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Job is the access to an epoch's caches for a job between steps. It is valid until the job returns.
type Job struct {
	e    *Epoch
	made map[uint64]*machine.Kept
}

// Run runs a job. It returns the caches that the job has made, also after an error.
func (e *Epoch) Run(do func(*Job) error) (made map[uint64]*machine.Kept, err error) {
	j := &Job{e: e, made: map[uint64]*machine.Kept{}}
	err = do(j)
	return j.made, err
}

// Arena returns the arena of all caches.
func (j *Job) Arena() *memory.Arena { return j.e.Arena }

func (j *Job) Geometry() kvcache.Geometry { return j.e.Geometry }

// Pool returns the socket's worker pool.
func (j *Job) Pool() *tensor.Pool { return j.e.pool }

func (j *Job) Config() *model.Config { return &j.e.config }

// Prompt returns this socket's rows of a prompt during prefill, and the statistics for its policy.
func (j *Job) Prompt(seq uint64) (*kvcache.Store, *kvcache.Observation, error) {
	q := j.e.Seqs[seq]
	if q == nil || q.PromptShard == nil {
		return nil, nil, fmt.Errorf("socket: sequence %d has no prompt in prefill on this socket", seq)
	}
	return q.PromptShard, q.Stats, nil
}

// Compress hands a prompt over to a cache with another policy and returns that cache. All of the
// prompt's heads must be on this socket, even if other sockets take part in prefill. A policy that
// keeps every row moves the rows instead of copying them, so the prompt loses them.
func (j *Job) Compress(part *kvcache.Store, seen *kvcache.Observation, p *kvcache.Policy) (*kvcache.Store, error) {
	e := j.e.singleSocket()
	if have := part.Heads(); have.Lo != 0 || have.Hi != e.Geometry.KVHeads {
		return nil, fmt.Errorf("socket: this socket has KV heads [%d, %d) of %d of the prompt, compression needs all",
			have.Lo, have.Hi, e.Geometry.KVHeads)
	}
	q := &caches.Sequence{Prompt: part.Tokens(), Policy: p, PromptShard: part, Stats: seen, Cache: kvcache.NewStore(e.Arena, e.Geometry, p)}
	q.Cache.Score = e.Score
	adopted := tensor.Span{}
	if p.KeepsPrompt() {
		adopted = part.Heads()
	}
	err := q.Cache.Open(q.Prompt, q.Prompt, adopted)
	h := &handover{epoch: e, seqs: []*caches.Sequence{q}, heads: topology.Range{Hi: e.Geometry.KVHeads}}
	for layer := 0; err == nil && layer < e.Geometry.Layers+e.Geometry.Recurrent.Layers; layer++ {
		h.divide(oneLayer(layer), func(failed error) { err = failed })
		if err == nil {
			h.start(oneLayer(layer), func(failed error) { err = failed })
		}
		if err == nil {
			err = h.finish()
		}
	}
	if err == nil {
		err = q.Cache.SealOn(e.pool.Run, e.ropesUntil(q.Prompt))
	}
	if err != nil {
		q.Cache.Release()
		return nil, err
	}
	return q.Cache, nil
}

// singleSocket returns the epoch as if this socket had all heads.
func (e *Epoch) singleSocket() *Epoch {
	if len(e.Place.Slices) == 1 {
		return e
	}
	c, of := *e.Epoch, *e
	c.Rank, c.Place.Slices = 0, []topology.Slice{{KVHeads: topology.Range{Hi: e.Geometry.Cut()}}}
	of.Epoch = &c
	return &of
}

// Spill moves the rows of a whole cache to a file, if the socket has a disk for them and the cache is
// large enough. It waits for the disk.
func (j *Job) Spill(own *kvcache.Store) error { return j.e.Spill(own) }

// Keep adds a whole cache to the socket, as if an earlier epoch had left it. A plan can continue with
// it by an Open with Resume and the same adapter. Keep frees the socket's previous cache of the sequence.
func (j *Job) Keep(seq uint64, own *kvcache.Store, adapter lora.ID) {
	j.e.Release([]machine.Effect{{Do: machine.DoRelease, Seq: seq}})
	j.e.Seqs[seq] = &caches.Sequence{ID: seq, Replica: plan.None, Cache: own}
	j.made[seq] = &machine.Kept{Prompt: own.Prompt(), Tokens: own.Tokens(), Policy: own.Policy(), Adapter: adapter}
}
