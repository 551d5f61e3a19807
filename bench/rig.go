package bench

import (
	"context"

	"shoal/actors/socket"
	"shoal/internal/alone"
	"shoal/model"
	"shoal/proto"
	"shoal/sampler"
	"shoal/tensor"
)

// Options are what a model is measured with.
type Options struct {
	Model   string       // a shape of model.Shapes
	Weights tensor.DType // type of the matrices
	KV      tensor.DType // type of the cache
	Threads int
	Context int // decode: tokens in every sequence's cache; prefill: tokens of the prompt
	Batch   int // decode: sequences
	Chunk   int // prefill: tokens a step; 0: all at once
	Policy  string
	Tokens  int // decode: steps that are measured
	Repeat  int // prefill: prompts that are measured
}

// rig is a shape with random weights on one socket, alone.
type rig struct {
	*alone.Socket
	pool *tensor.Pool
	ck   *model.Checkpoint
}

func newRig(ctx context.Context, o Options, budget int64, rows int) (_ *rig, err error) {
	r := &rig{pool: tensor.NewPool(o.Threads)}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.ck, err = model.Random(o.Model); err != nil {
		return nil, err
	}
	r.Socket, err = alone.New(ctx, alone.Config{Checkpoint: r.ck, Pool: r.pool, Weights: o.Weights, KV: o.KV, KVBudget: budget, StepTokens: rows})
	return r, err
}

func (r *rig) close() {
	if r.Socket != nil {
		r.Socket.Close()
	}
	r.pool.Close()
	if r.ck != nil {
		r.ck.Close()
	}
}

// fill opens sequences 1..n with random caches under a policy.
func (r *rig) fill(ctx context.Context, n, tokens int, policy string) error {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	return r.Fill(ctx, ids, tokens, policy)
}

// greedy is the cheapest sampling, and what llama-bench's peers do.
func greedy() *proto.Sampling {
	p := sampler.Default()
	p.Temperature = 0
	return socket.SamplingMessage(&p)
}
