package batcher

import (
	"cmp"
	"fmt"
	"slices"
)

// submit rejects a request with a reason, or adds it to the queue.
func (s *State) submit(spec Spec) {
	r := &request{Spec: spec, resides: resides{replica: none}, started: -1, first: -1, unserved: -1}
	r.Policy = spec.Policy.For(cmp.Or(spec.Context, len(spec.Prompt)))
	r.out = slices.Clone(spec.Emitted)
	if spec.Policy.Endless() && r.Context == 0 && len(r.Prompt) > s.cfg.ContextLimit {
		r.Context = s.cfg.ContextLimit // the rest attends like generated tokens
	}
	s.prefix.submit(r)
	r.limit = min(spec.MaxTokens, spec.Policy.ContextLimit(s.cfg.ContextLimit)-len(spec.Prompt))
	r.open.most = r.limit
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
	if rejected := r.validate(&s.cfg); rejected != nil {
		return rejected
	}
	if s.placed {
		if s.ledger.place(r); r.unfit != "" && !r.Accepted {
			return reject(CodeBudget, "%s", s.tooLarge(r))
		}
	}
	if s.placed && r.unfit == "" {
		if r.unfit = s.adapted.refuse(r); r.unfit != "" && !r.Accepted {
			return reject(CodeBudget, "%s", s.adapted.tooLarge(r))
		}
	}
	switch {
	case r.Accepted:
		return nil
	case s.draining:
		return &Reject{Code: CodeDraining, Message: "the server is shutting down", RetryAfter: 10}
	case s.waiting.requests() >= s.cfg.MaxWaiting:
		after := s.retryAfter()
		rejected := reject(CodeOverloaded, "%d requests are waiting, try again in about %d s", s.waiting.requests(), after)
		rejected.RetryAfter = after
		return rejected
	}
	return nil
}

func reject(code, format string, args ...any) *Reject {
	return &Reject{Code: code, Message: fmt.Sprintf(format, args...)}
}

// tooLarge returns the message for a request that cannot fit: the bytes that it needs, the socket that
// lacks them, and the output that would fit.
func (s *State) tooLarge(r *request) string {
	advice := "the prompt alone does not fit"
	if n := s.ledger.largestOutput(r, r.limit); n >= 0 {
		advice = fmt.Sprintf("with this prompt max_tokens can be at most %d", n)
	}
	return fmt.Sprintf("%d prompt and %d output tokens under policy %s do not fit, even when nothing else runs: the sequence %s; %s",
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
