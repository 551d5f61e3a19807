package alone

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// PrefillPolicies reads a prompt, chunk tokens a step, and turns it into a sequence seq under the policy
// full. For policy i it also creates a sequence seq+1+i with the tokens that this policy keeps. It
// returns the first token of each, greedy, full first. From then on they are decoded like any others.
//
// It is for measuring accuracy: reading a long prompt costs far more than choosing from it and
// decoding an answer. So the prompt is read once, with all observations that any of the policies
// needs. Exceptions: latent attention counts an observation window as it arrives, so there the
// prompt is read once per window. Policies under which the prompt's tail does not attend to
// everything have it read up to the tail, and the tail under each policy. Every reading after the
// first reuses its blocks, up to where observations begin. Policies with the same clusters compute
// them once.
func (a *Socket) PrefillPolicies(ctx context.Context, seq uint64, prompt []int32, policies []string, chunk int) (first []int32, err error) {
	defer a.dropSaved()
	tokens := make([]uint32, len(prompt))
	for i, t := range prompt {
		tokens[i] = uint32(t)
	}
	all := make([]*kvcache.Policy, len(policies))
	var g kvcache.Geometry
	if err := a.between(ctx, 0, func(c *step.Job) error { g = c.Geometry(); return nil }); err != nil {
		return nil, err
	}
	bases, of := []kvcache.Needs{{}}, make([]int, len(all)) // observations of each prefill; each policy's prefill
	parts := map[observedPart][]int{}
	for i, spec := range policies {
		if all[i], err = kvpolicy.Parse(spec); err != nil {
			return nil, err
		}
		all[i] = all[i].For(len(prompt))
		if err := g.Fits(all[i]); err != nil {
			return nil, err
		}
		if all[i].RebuildsByPrefill() {
			return nil, fmt.Errorf("alone: policy %s keeps and reads every token: it equals sequence %d", spec, seq)
		}
		n := all[i].Needs
		switch of[i] = slices.Index(bases, n); {
		case all[i].Context(len(prompt)) < len(prompt):
			part := observedPart{n, all[i].Context(len(prompt))}
			parts[part], of[i] = append(parts[part], i), none
		case n == (kvcache.Needs{}):
			of[i] = 0
		case g.Units == 0 || bases[0] == (kvcache.Needs{}):
			of[i], bases[0] = 0, kvcache.Needs{Window: max(n.Window, bases[0].Window),
				PromptAttention: n.PromptAttention || bases[0].PromptAttention, Queries: n.Queries || bases[0].Queries}
		case of[i] < 0:
			of[i], bases = len(bases), append(bases, n)
		}
	}
	first = make([]int32, 1+len(all))
	for part, list := range parts {
		if err := a.tails(ctx, seq, tokens, part, all, list, chunk, first[1:]); err != nil {
			return nil, err
		}
	}
	for b, n := range bases {
		drawn, _, _, err := a.Prefill(ctx, a.reading(seq, n, tokens, chunk))
		if err != nil {
			return nil, err
		}
		first[0] = drawn
		err = a.between(ctx, 0, func(c *step.Job) error {
			part, seen, err := c.Prompt(seq)
			if err != nil {
				return err
			}
			for i, p := range all {
				if of[i] != b {
					continue
				}
				own, err := c.Compress(part, seen, p)
				if err != nil {
					return err
				}
				c.Keep(seq+1+uint64(i), own, lora.ID{})
			}
			if b < len(bases)-1 {
				return nil
			}
			own, err := c.Compress(part, nil, kvcache.Full())
			if err == nil {
				c.Keep(seq, own, lora.ID{})
			}
			return err
		})
		if err == nil && b < len(bases)-1 {
			err = a.Release(ctx, []uint64{seq})
		}
		if err != nil {
			return nil, err
		}
	}
	a.resume(seq, 0, kvcache.Full(), tokens, 0)
	for i, p := range all {
		if of[i] != none {
			first[1+i] = first[0]
			a.resume(seq+1+uint64(i), 0, p, tokens, 0)
		}
	}
	return first, nil
}

const none = -1

// reading returns a prompt whose reading observes n. It reuses saved blocks of the text.
func (a *Socket) reading(seq uint64, n kvcache.Needs, tokens []uint32, chunk int) Prompt {
	p := Prompt{Seq: seq, Policy: watching(n).Spec(), Tokens: tokens, Chunk: chunk, Open: true, Save: true}
	if !n.PromptAttention {
		p.Blocks = min(a.saved, watching(n).ReusableTokens(len(tokens))/tensor.BlockSlots)
	}
	return p
}

// observedPart is a part of a prompt, and the observations of its reading.
type observedPart struct {
	needs   kvcache.Needs
	context int
}

// tails reads a part of a prompt and creates the sequences of the policies in list from it. Each
// then reads the rest under its policy; first receives the next tokens.
func (a *Socket) tails(ctx context.Context, seq uint64, tokens []uint32, part observedPart, all []*kvcache.Policy,
	list []int, chunk int, first []int32) error {
	if _, _, _, err := a.Prefill(ctx, a.reading(seq, part.needs, tokens[:part.context], chunk)); err != nil {
		return err
	}
	err := a.between(ctx, 0, func(c *step.Job) error {
		prompt, seen, err := c.Prompt(seq)
		var found kvcache.IndexWork
		for _, i := range list {
			if err != nil {
				return err
			}
			if x := kvcache.IndexWorkOf(c.Geometry(), part.context, all[i]); x.Clusters != found.Clusters {
				for piece := range x.Fine {
					seen.Prepare(prompt, all[i], piece, c.Pool().Run)
				}
				found = x
			}
			var own *kvcache.Store
			if own, err = c.Compress(prompt, seen, all[i]); err == nil {
				c.Keep(seq+1+uint64(i), own, lora.ID{})
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := a.Release(ctx, []uint64{seq}); err != nil {
		return err
	}
	for _, i := range list {
		a.resume(seq+1+uint64(i), 0, all[i], tokens[:part.context], len(tokens)-part.context)
	}
	for at := part.context; at < len(tokens); {
		end := min(at+max(1, chunk/len(list)), len(tokens)-1)
		last := end <= at
		if last {
			end = len(tokens)
		}
		req := &proto.StepRequest{DeadlineMillis: 600000}
		for _, i := range list {
			req.Chunks = append(req.Chunks, &proto.Chunk{Seq: seq + 1 + uint64(i), Start: uint32(at), Tokens: tokens[at:end], Sample: last})
		}
		reply, _, _, err := a.Step(ctx, req)
		if err != nil {
			return err
		}
		for _, s := range reply.Sampled {
			if !s.Drawn[0].HasToken {
				return sampler.ErrNoCandidate
			}
			first[s.Seq-seq-1] = int32(s.Drawn[0].Token)
		}
		at = end
	}
	return nil
}

// watching returns the policy full, with the observations that other policies need.
func watching(n kvcache.Needs) *kvcache.Policy {
	return kvcache.Compose("watching", fmt.Sprintf("watching:%d,%t,%t,%t,%d,%d", n.Window, n.PromptAttention, n.Queries, n.Labels,
		n.Candidates.Sink, n.Candidates.Recent), kvcache.Parts{Needs: n})
}

// parse is kvpolicy.Parse, and also accepts a watching.
func parse(spec string) (*kvcache.Policy, error) {
	rest, ok := strings.CutPrefix(spec, "watching:")
	if !ok {
		return kvpolicy.Parse(spec)
	}
	var n kvcache.Needs
	_, err := fmt.Sscanf(rest, "%d,%t,%t,%t,%d,%d", &n.Window, &n.PromptAttention, &n.Queries, &n.Labels,
		&n.Candidates.Sink, &n.Candidates.Recent)
	return watching(n), err
}
