package alone

import (
	"context"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/step"
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
	Save   bool     // save its full blocks for later prompts with the same text, until forget
	Drop   []uint64 // sequences to release in the first step
}

// Prefill reads a prompt. It returns the next token, greedy, and the total of all of its steps.
func (a *Socket) Prefill(ctx context.Context, p Prompt) (first int32, took time.Duration, sum step.Times, err error) {
	policy, err := parse(p.Policy)
	if err != nil {
		return 0, 0, sum, err
	}
	from := p.Blocks * tensor.BlockSlots
	req := &proto.StepRequest{Open: []*proto.Open{{Seq: p.Seq, Policy: policy.For(len(p.Tokens)).Spec(),
		Sampling: greedy(), PromptTokens: uint32(len(p.Tokens)),
		Shared: blocks(0, p.Blocks), Prefix: p.Tokens[:from], Adapter: a.Adapters[p.Seq].Bytes()}}, Release: p.Drop}
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
			if !reply.Sampled[0].Drawn[0].HasToken {
				return 0, 0, sum, sampler.ErrNoCandidate
			}
			return int32(reply.Sampled[0].Drawn[0].Token), took, sum, nil
		}
		req, at = &proto.StepRequest{}, end
	}
}

// blocks returns the numbers of a text's blocks [lo, hi) in the prefix cache, which holds one text at a
// time.
func blocks(lo, hi int) (ids []uint64) {
	for i := lo; i < hi; i++ {
		ids = append(ids, uint64(1+i))
	}
	return ids
}

// forget makes the next step drop the blocks that prompts saved.
func (a *Socket) forget() { a.evict, a.saved = append(a.evict, blocks(0, a.saved)...), 0 }

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
