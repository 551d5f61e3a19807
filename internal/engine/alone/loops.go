package alone

import (
	"context"
	"errors"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Prompt is the input of Prefill.
type Prompt struct {
	Seq    uint64
	Policy string
	Tokens []uint32
	Chunk  int      // tokens per step
	Open   bool     // it stays a prompt: no hand-over
	Blocks int      // number of the text's first blocks to reuse, which an earlier prompt saved
	Save   bool     // save its full blocks for later prompts with the same text, until dropSaved
	Drop   []uint64 // sequences to release in the first step

	// Shape, unless zero, reads the prompt layer by layer, without Open, Blocks and Save.
	Shape layered.Shape
	// Layers is the number of first layers that read it. If it is less than that of the model, nothing is sampled.
	Layers int
}

// Prefill reads a prompt. It returns the next token, greedy, and the total of all of its steps.
func (a *Socket) Prefill(ctx context.Context, p Prompt) (first int32, took time.Duration, sum step.Times, err error) {
	policy, err := parse(p.Policy)
	if err != nil {
		return 0, 0, sum, err
	}
	from := p.Blocks * tensor.BlockSlots
	req := &proto.StepRequest{Open: []*proto.Open{{Seq: p.Seq, Policy: policy.For(len(p.Tokens)).Spec(),
		Sampling: greedy(), PromptTokens: uint32(len(p.Tokens)), PassRows: uint32(p.Shape.Pass), ResidualInFile: p.Shape.InFile,
		Shared: blocks(0, p.Blocks), Prefix: p.Tokens[:from], Adapter: a.Adapters[p.Seq].Bytes()}}, Release: p.Drop}
	if p.Shape.Group > 0 {
		return a.sweep(ctx, p, req)
	}
	for at := from; ; {
		end := min(at+p.Chunk, len(p.Tokens))
		last := end == len(p.Tokens)
		req.DeadlineMillis = 600000
		req.Chunks = []*proto.Chunk{{Seq: p.Seq, Start: uint32(at), Tokens: p.Tokens[at:end], Prefill: true, Last: last && !p.Open, Sample: last}}
		if p.Save {
			full := at / tensor.BlockSlots
			req.Chunks[0].SaveFrom, req.Chunks[0].Save = uint32(full), blocks(full, end/tensor.BlockSlots)
			a.saved = max(a.saved, end/tensor.BlockSlots)
		}
		reply, t, stages, err := a.Step(ctx, req)
		if err != nil {
			return 0, 0, sum, err
		}
		took += t
		sum.Add(stages)
		if last {
			first, err := drawn(reply)
			return first, took, sum, err
		}
		req, at = &proto.StepRequest{}, end
	}
}

// sweep is Prefill layer by layer. req opens the sequence.
func (a *Socket) sweep(ctx context.Context, p Prompt, req *proto.StepRequest) (first int32, took time.Duration, sum step.Times, err error) {
	var reply *proto.StepReply
	for from, to := 0, 0; from < min(p.Layers, a.layers); from = to {
		to = p.Shape.To(from)
		for at, end := 0, 0; at < len(p.Tokens); at = end {
			end = min(at+p.Shape.Rows(from, p.Shape.Pass), len(p.Tokens))
			req.DeadlineMillis = 600000
			req.Sweeps = []*proto.Sweep{{Seq: p.Seq, FromLayer: uint32(from), ToLayer: uint32(to), Start: uint32(at),
				Tokens: p.Tokens[at:end], Sample: end == len(p.Tokens) && to == a.layers}}
			var t time.Duration
			var stages step.Times
			if reply, t, stages, err = a.Step(ctx, req); err != nil {
				return 0, 0, sum, err
			}
			if len(reply.Lost) > 0 {
				return 0, 0, sum, errors.New("alone: a file of the residual stream failed")
			}
			took += t
			sum.Add(stages)
			req = &proto.StepRequest{}
		}
	}
	if p.Layers < a.layers {
		return 0, took, sum, nil
	}
	first, err = drawn(reply)
	return first, took, sum, err
}

// drawn returns the token that the only sequence of a step has sampled.
func drawn(reply *proto.StepReply) (int32, error) {
	d := reply.Sampled[0].Drawn[0]
	if !d.HasToken {
		return 0, sampler.ErrNoCandidate
	}
	return int32(d.Token), nil
}

// PeakBytes returns the most bytes of caches that a socket has used since the start.
func (a *Socket) PeakBytes(ctx context.Context) (most int64, err error) {
	for rank := range a.ranks {
		err := a.between(ctx, rank, func(c *step.Job) error {
			most = max(most, c.Arena().Peak())
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return most, nil
}

// blocks returns the numbers of a text's blocks [lo, hi) in the prefix cache, which holds one text at a
// time.
func blocks(lo, hi int) (ids []uint64) {
	for i := lo; i < hi; i++ {
		ids = append(ids, uint64(1+i))
	}
	return ids
}

// dropSaved makes the next step drop the blocks that prompts saved.
func (a *Socket) dropSaved() { a.evict, a.saved = append(a.evict, blocks(0, a.saved)...), 0 }

// Row is a sequence in decode: its next token and that token's position.
type Row struct {
	Seq   uint64
	At    int
	Token int32
}

// Decode advances every row by one token, greedy, and updates Token and At.
func (a *Socket) Decode(ctx context.Context, rows []*Row) (*proto.StepReply, time.Duration, step.Times, error) {
	req := &proto.StepRequest{DeadlineMillis: 60000}
	of := make(map[uint64]*Row, len(rows))
	for _, r := range rows {
		req.Chunks = append(req.Chunks, &proto.Chunk{Seq: r.Seq, Start: uint32(r.At), Tokens: []uint32{uint32(r.Token)}, Sample: true})
		of[r.Seq] = r
	}
	reply, took, stages, err := a.Step(ctx, req)
	if err != nil {
		return nil, 0, stages, err
	}
	for _, s := range reply.Sampled {
		if !s.Drawn[0].HasToken {
			return nil, 0, stages, sampler.ErrNoCandidate
		}
		r := of[s.Seq]
		r.At, r.Token = r.At+1, int32(s.Drawn[0].Token)
	}
	return reply, took, stages, nil
}

// Scored is the prediction of the model after a row.
type Scored struct {
	Logprob float64 // of the given next token, natural logarithm
	Best    int32   // the most likely token
}

// Score feeds every row's token, and advances all rows to the same given next token. It returns
// the prediction of each row for it.
func (a *Socket) Score(ctx context.Context, rows []*Row, next int32) ([]Scored, error) {
	req := &proto.StepRequest{DeadlineMillis: 60000}
	of := make(map[uint64]int, len(rows))
	for i, r := range rows {
		req.Chunks = append(req.Chunks, &proto.Chunk{Seq: r.Seq, Start: uint32(r.At), Tokens: []uint32{uint32(r.Token)},
			WantPromptLogprobs: true, PromptLogprobs: 1, Next: 1 + uint32(next)})
		of[r.Seq] = i
		r.At, r.Token = r.At+1, next
	}
	reply, _, _, err := a.Step(ctx, req)
	if err != nil {
		return nil, err
	}
	out := make([]Scored, len(rows))
	for _, s := range reply.Sampled {
		if len(s.Prompt) != 1 || len(s.Prompt[0].Top) != 1 {
			return nil, sampler.ErrNoCandidate
		}
		out[of[s.Seq]] = Scored{float64(s.Prompt[0].Logprob), int32(s.Prompt[0].Top[0].Token)}
	}
	return out, nil
}
