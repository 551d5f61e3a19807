package batcher

import (
	"cmp"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

const maxPriority = 1000

// validate rejects a request that no state of the cluster could serve. nil: it is valid.
func (r *request) validate(cfg *Config) *Reject {
	if rejected := r.invalid(); rejected != nil {
		return rejected
	}
	return cmp.Or(r.unsupported(cfg), r.tooLong(cfg))
}

// invalid rejects a request with a field that is missing or out of bounds. nil: there is none.
func (r *request) invalid() *Reject {
	switch {
	case r.ID == "":
		return reject(CodeInvalid, "the request has no ID")
	case r.Policy == nil || r.Sampling == nil:
		return reject(CodeInvalid, "the request has no cache policy or no sampling parameters")
	case len(r.Prompt) == 0:
		return reject(CodeInvalid, "the prompt is empty")
	case r.MaxTokens < 0 || len(r.out) > r.MaxTokens:
		return reject(CodeInvalid, "max_tokens is %d with %d tokens emitted before", r.MaxTokens, len(r.out))
	case r.Priority < -maxPriority || r.Priority > maxPriority:
		return reject(CodeInvalid, "priority %d must be from %d to %d", r.Priority, -maxPriority, maxPriority)
	case r.PromptLogprobs < -1:
		return reject(CodeInvalid, "prompt_logprobs is %d", r.PromptLogprobs)
	}
	return nil
}

// unsupported rejects a request that its policy or the model does not support. nil: both support it.
func (r *request) unsupported(cfg *Config) *Reject {
	whole := r.context() >= len(r.Prompt) // prefill reads the whole prompt
	forks := r.Policy.Forks() || !r.Hold && (r.Policy.Endless() || r.Session != "")
	shares := r.Policy.RebuildsByPrefill() && !cfg.NoPrefixCache && cfg.Geometry.Units == 0 // blocks of a context that is cut
	switch {
	case r.PromptLogprobs >= 0 && !whole:
		return reject(CodeInvalid, "log-probabilities of the prompt are not available under %s, which reads only a part of it whole: "+
			"choose another kv_policy", r.Policy.Name())
	case r.Context < 0 || r.Context > len(r.Prompt):
		return reject(CodeInvalid, "a fixed context of %d tokens in a prompt of %d", r.Context, len(r.Prompt))
	case r.Context > 0 && !forks && !shares:
		return reject(CodeInvalid, "a fixed context under %s: %s", r.Policy.Name(), r.whyNoContext(cfg))
	case r.Hold && !forks && r.Context < tensor.BlockSlots:
		return reject(CodeInvalid, "a fixed context of %d tokens under %s: requests share blocks of %d tokens, so it needs at least as many",
			r.Context, r.Policy.Name(), tensor.BlockSlots)
	case r.Hold && (r.MaxTokens != 1 || r.Context != len(r.Prompt)):
		return reject(CodeInvalid, "a context that is held is its whole prompt, and has one token")
	case !r.Pool.Valid() || r.Pool == pooling.None && (cfg.Whole || cfg.Headless):
		return reject(CodeInvalid, "the request is for tokens or has an unknown pooling (%v), and this model only makes vectors", r.Pool)
	case r.Pool != pooling.None && (r.MaxTokens != 0 || r.PromptLogprobs >= 0 || r.Context > 0 || !whole):
		return reject(CodeInvalid, "a request for a vector reads its whole prompt under %s; it has no output, no prompt_logprobs "+
			"and no context", r.Policy.Name())
	}
	return nil
}

// whyNoContext returns why a fixed context cannot be kept under a policy that shares blocks or forks no caches.
func (r *request) whyNoContext(cfg *Config) string {
	switch {
	case !r.Policy.RebuildsByPrefill():
		return "only squeezed and full have one"
	case cfg.NoPrefixCache:
		return "requests share its blocks in the prefix cache, which is off: choose squeezed, or turn it on"
	}
	return "a cache of latent attention is not cut over nodes: choose squeezed"
}

// tooLong rejects a request whose tokens do not fit into its context. nil: they fit.
func (r *request) tooLong(cfg *Config) *Reject {
	if cfg.Whole && len(r.Prompt) > cfg.TokenBudget {
		return reject(CodeContext, "the text has %d tokens, and a step reads at most %d at once", len(r.Prompt), cfg.TokenBudget)
	}
	longest := r.Policy.ContextLimit(cfg.ContextLimit)
	if r.context() > cfg.ContextLimit || len(r.Prompt)+min(r.MaxTokens, 1) > longest || len(r.out) > r.limit {
		return reject(CodeContext, "the prompt has %d tokens, and the context holds %d with the output", len(r.Prompt)+len(r.out), longest)
	}
	return nil
}
