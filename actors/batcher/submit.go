package batcher

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/options"
)

const maxPriority = 1000

// submit rejects a request with a reason, or adds it to the queue.
func (s *State) submit(spec Spec) {
	r := &request{Spec: spec, resides: resides{replica: none}, started: -1, first: -1, unserved: -1}
	r.Policy = spec.Policy.For(cmp.Or(spec.Context, len(spec.Prompt)))
	r.out = slices.Clone(spec.Emitted)
	if spec.Policy.Endless() && r.Context == 0 && len(r.Prompt) > s.cfg.ContextLimit {
		r.Context = s.cfg.ContextLimit // the rest attends like generated tokens
	}
	s.prefix.submit(r)
	r.limit = min(spec.MaxTokens, spec.Policy.Longest(s.cfg.ContextLimit)-len(spec.Prompt))
	s.drafts.submit(r)
	r.rank = spec.Arrival + int64(spec.Priority)*s.cfg.PriorityMillis
	if spec.Accepted {
		r.rank += s.cfg.JobMillis
	}
	if rejected := s.refuse(r); rejected != nil {
		rejected.ID = spec.ID
		s.out.Rejects = append(s.out.Rejects, *rejected)
		return
	}
	s.submitted++
	r.number = s.submitted
	s.requests[r.ID] = r
	s.waiting.insert(r)
	if reason, over := r.finished(s.cfg.EOS); over && !r.Hold { // a job whose coordinator died between its last token and its end
		s.finish(r, reason, "", "")
	}
}

// refuse returns why a request cannot join the queue, or nil.
func (s *State) refuse(r *request) *Reject {
	if s.requests[r.ID] != nil {
		return reject(CodeDuplicate, "a request with ID %q is there already", r.ID)
	}
	for _, check := range []func(*Config) *Reject{r.invalid, r.unsupported, r.tooLong} {
		if rejected := check(&s.cfg); rejected != nil {
			return rejected
		}
	}
	if s.placed {
		if r.able, r.unfit = s.ledger.ableOwners(r, r.limit); r.unfit != "" && !r.Accepted {
			return reject(CodeBudget, "%s", s.tooLarge(r))
		}
	}
	if s.placed && r.unfit == "" {
		if r.unfit = s.adapted.refuse(r); r.unfit != "" && !r.Accepted {
			return reject(CodeBudget, "%s: use an adapter of smaller rank, or restart the nodes with a larger %s",
				r.unfit, options.Name("lora-memory"))
		}
	}
	switch {
	case r.Accepted:
		return nil
	case s.draining:
		return &Reject{Code: CodeDraining, Message: "the server is shutting down", RetryAfter: 10}
	case len(s.waiting) >= s.cfg.MaxWaiting:
		after := s.retryAfter()
		rejected := reject(CodeOverloaded, "%d requests are waiting, try again in about %d s", len(s.waiting), after)
		rejected.RetryAfter = after
		return rejected
	}
	return nil
}

func reject(code, format string, args ...any) *Reject {
	return &Reject{Code: code, Message: fmt.Sprintf(format, args...)}
}

// invalid returns which field of a request is invalid, or nil.
func (r *request) invalid(*Config) *Reject {
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

// unsupported returns what the policy of a request or the model does not support, or nil.
func (r *request) unsupported(cfg *Config) *Reject {
	whole := r.context() >= len(r.Prompt) // prefill reads the whole prompt
	forks := r.Policy.Forks() || !r.Hold && (r.Policy.Endless() || r.Session != "")
	switch {
	case r.PromptLogprobs >= 0 && !whole:
		return reject(CodeInvalid, "log-probabilities of the prompt are not available under %s, which reads only a part of it whole: "+
			"ask for another kv_policy", r.Policy.Name())
	case r.Context < 0 || r.Context > len(r.Prompt) || r.Context > 0 && !forks:
		return reject(CodeInvalid, "a fixed context of %d tokens of %d under %s: it needs a policy that lays a prompt out once, squeezed",
			r.Context, len(r.Prompt), r.Policy.Name())
	case r.Hold && (r.MaxTokens != 1 || r.Context != len(r.Prompt)):
		return reject(CodeInvalid, "a context that is held is its whole prompt, and has one token")
	case !r.Pool.Valid() || r.Pool == pooling.None && (cfg.Whole || cfg.Headless):
		return reject(CodeInvalid, "the request asks for tokens or an unknown vector (pooling %v), and this model only makes vectors", r.Pool)
	case r.Pool != pooling.None && (r.MaxTokens != 0 || r.PromptLogprobs >= 0 || r.Context > 0 || !whole):
		return reject(CodeInvalid, "a request for a vector reads its whole prompt under %s; it has no output, no prompt_logprobs "+
			"and no context", r.Policy.Name())
	}
	return nil
}

// tooLong returns why the tokens of a request do not fit into its context, or nil.
func (r *request) tooLong(cfg *Config) *Reject {
	if cfg.Whole && len(r.Prompt) > cfg.TokenBudget {
		return reject(CodeContext, "the text has %d tokens, and a step reads at most %d at once", len(r.Prompt), cfg.TokenBudget)
	}
	longest := r.Policy.Longest(cfg.ContextLimit)
	if r.context() > cfg.ContextLimit || len(r.Prompt)+min(r.MaxTokens, 1) > longest || len(r.out) > r.limit {
		return reject(CodeContext, "the prompt has %d tokens, and the context holds %d with the output", len(r.Prompt)+len(r.out), longest)
	}
	return nil
}

// tooLarge returns the message for a request that cannot fit: the bytes that it needs, on which socket,
// and the output that would fit.
func (s *State) tooLarge(r *request) string {
	advice := "the prompt alone does not fit"
	if n := s.ledger.largestOutput(r); n >= 0 {
		advice = fmt.Sprintf("with this prompt max_tokens can be at most %d", n)
	}
	return fmt.Sprintf("%d prompt and %d output tokens under policy %s do not fit: the sequence %s, when nothing else runs; %s",
		len(r.Prompt), r.limit, r.Policy.Spec(), r.unfit, advice)
}

// retryAfter estimates the seconds until the queue has a free place, from 1 to 60: the mean work of
// the queued requests, at the measured rate.
func (s *State) retryAfter() int {
	if s.rate.PerSecond == 0 || len(s.waiting) == 0 {
		return 5
	}
	var work int64
	for _, r := range s.waiting {
		work += int64(len(r.Prompt) + r.limit)
	}
	return int(min(60, 1+work/int64(len(s.waiting))/s.rate.PerSecond))
}
