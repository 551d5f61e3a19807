package alone

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"shoal/actors/socket"
	"shoal/kvcache"
)

// Together reads a prompt, chunk tokens a step, and makes a sequence seq of it under
// the policy full, and for each of policies a sequence seq+1+i that keeps what that
// policy chooses. It returns the first token of all of them, greedy; from then on
// they are decoded like any others.
//
// It is for measuring accuracy: reading a long prompt costs far more than choosing
// from it and decoding an answer. So the prompt is read once, with everything observed
// that any of the policies looks at. Of latent attention a window is counted as it
// comes; there the prompt is read once for each window.
func (a *Socket) Together(ctx context.Context, seq uint64, prompt []int32, policies []string, chunk int) (first int32, err error) {
	tokens := make([]uint32, len(prompt))
	for i, t := range prompt {
		tokens[i] = uint32(t)
	}
	all := make([]*kvcache.Policy, len(policies))
	latent := false
	if err := a.between(ctx, func(c *socket.Caches) error { latent = c.Geometry().Units > 0; return nil }); err != nil {
		return 0, err
	}
	bases, of := []kvcache.Needs{{}}, make([]int, len(all)) // what is observed in one reading each; each policy's
	for i, spec := range policies {
		if all[i], err = kvcache.Parse(spec); err != nil {
			return 0, err
		}
		if all[i].RebuildsByPrefill() {
			return 0, fmt.Errorf("alone: policy %s keeps and reads every token: that is sequence %d itself", spec, seq)
		}
		n := all[i].Needs
		switch of[i] = slices.Index(bases, n); {
		case n == (kvcache.Needs{}):
			of[i] = 0
		case !latent || bases[0] == (kvcache.Needs{}):
			of[i], bases[0] = 0, kvcache.Needs{Window: max(n.Window, bases[0].Window), PromptAttention: n.PromptAttention || bases[0].PromptAttention}
		case of[i] < 0:
			of[i], bases = len(bases), append(bases, n)
		}
	}
	for b, n := range bases {
		if first, _, _, err = a.Prefill(ctx, Prompt{Seq: seq, Policy: watching(n).Spec(), Tokens: tokens, Chunk: chunk, Open: true}); err != nil {
			return 0, err
		}
		err = a.between(ctx, func(c *socket.Caches) error {
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
				c.Keep(seq+1+uint64(i), own)
			}
			if b < len(bases)-1 {
				return nil
			}
			own, err := c.Compress(part, nil, kvcache.Full())
			if err == nil {
				c.Keep(seq, own)
			}
			return err
		})
		if err == nil && b < len(bases)-1 {
			err = a.Release(ctx, []uint64{seq})
		}
		if err != nil {
			return 0, err
		}
	}
	a.resume(seq, kvcache.Full(), tokens)
	for i, p := range all {
		a.resume(seq+1+uint64(i), p, tokens)
	}
	return first, nil
}

// watching is the policy full that observes what others need.
func watching(n kvcache.Needs) *kvcache.Policy {
	return kvcache.Compose("watching", fmt.Sprintf("watching:%d,%t", n.Window, n.PromptAttention), kvcache.Parts{Needs: n})
}

// parse is kvcache.Parse, and takes a watching too.
func parse(spec string) (*kvcache.Policy, error) {
	rest, ok := strings.CutPrefix(spec, "watching:")
	if !ok {
		return kvcache.Parse(spec)
	}
	var n kvcache.Needs
	_, err := fmt.Sscanf(rest, "%d,%t", &n.Window, &n.PromptAttention)
	return watching(n), err
}
