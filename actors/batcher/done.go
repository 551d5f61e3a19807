package batcher

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// stepDone processes the results of the step in flight: caches have grown, tokens are emitted, requests
// end.
func (s *State) stepDone(d StepDone) {
	if s.flight == nil || d.Epoch != s.flight.plan.Epoch || d.Step != s.flight.plan.Step {
		return // of an epoch or step that is over
	}
	results := report.BySequence(d.Results)
	why := results.Missing(s.flight.plan, func(c *plan.Run) bool { return pools(c, s.flight.rows[c.Seq]) })
	if why != "" {
		s.out.Faults = append(s.out.Faults, Fault{Kind: "result", Message: why})
		s.breakEpoch(why)
		return
	}
	f := s.flight
	s.flight = nil
	read := 0 // the number of prompt tokens in the step
	for i := range s.ledger.sockets {
		if i < len(d.Used) {
			s.measured(i, d.Used[i])
		}
	}
	s.timed(f.plan, &d)
	s.residency.done(f.plan, &d)
	for i := range f.plan.Decode {
		row := &f.plan.Decode[i]
		r := f.rows[row.Seq]
		if r.seq != row.Seq { // its file was lost, so it was preempted
			continue
		}
		read += s.inputs.done(r, row)
		if row.Sample {
			s.decoded(r, row, f.plan.PassCount(), results[r.seq])
		}
	}
	s.clusters.done(f.plan, f.rows)
	for i := range f.plan.Chunks {
		c := &f.plan.Chunks[i]
		r := f.rows[c.Seq]
		if !r.decodesCut() { // otherwise the token is counted as output
			read += len(c.Tokens)
		}
		s.readAgain(r, len(c.Tokens))
		s.prefix.done(c, r)
		if c.PromptLogprobs >= 0 {
			s.scored(r, results[r.seq])
		}
		if c.Sample {
			r.clustered.sample = &results[r.seq].Samples[0]
		}
		if c.Last {
			s.handedOver(r)
		}
		if r.cut.now && r.cached == r.read {
			s.cuts.read(r)
		}
		if pools(c, r) && !r.ended {
			r.pooled, r.first = results[r.seq].Pooled, s.now
			s.finish(r, ReasonStop, "", "")
		}
	}
	swept := s.layers.done(f, results)
	s.rate.Add(f.plan.Tokens()*f.plan.PassCount()+swept, read+swept+len(s.out.Emits))
}

// readAgain counts prompt tokens that prefill has read, and those of them that it had read before.
func (s *State) readAgain(r *request, tokens int) {
	again := uint64(max(0, min(r.reached, r.cached+tokens)-r.cached))
	s.totals.Recomputed += again
	if r.outage != nil {
		r.outage.Recomputed += again
	}
	r.cached += tokens
	r.reached = max(r.reached, r.cached)
}

// timed passes the duration of a step to the modules that measure steps: overlap, threads and drafts.
// threads and drafts get decode-only steps only, whose times are comparable.
func (s *State) timed(p *plan.Plan, d *StepDone) {
	micros := d.Micros
	usual := s.overlap.Done(p, float64(micros), float64(d.Waited))
	known := func(row plan.Run) bool { return !row.Sample || row.Known > 0 }
	if micros <= 0 || len(p.Chunks)+len(p.Sweeps)+len(p.Open)+len(p.Copy) > 0 || len(p.Decode) == 0 || slices.ContainsFunc(p.Decode, known) {
		return
	}
	pass := float64(micros) / float64(p.PassCount())
	s.drafts.Timed(p, pass, s.threads.Done(p, pass) && usual)
}

// decoded processes the results of a decode row over all passes: the tokens sampled after each of the
// row's tokens that are not known, up to the first that differs from the next token of the row.
func (s *State) decoded(r *request, row *plan.Run, passes int, result *Result) {
	right, samples, tokens := min(passes, len(result.Samples))-1, result.Samples, row.Tokens[row.Known:]
	for right < min(len(tokens), len(samples))-1 && samples[right].Err == nil && tokens[right+1] == samples[right].Token {
		right++
	}
	s.drafts.Done(&r.drafted, right)
	first := len(s.out.Emits)
	for i := 0; i <= right && !r.ended; i++ {
		if r.cached < r.reached {
			s.totals.Replayed++
			if r.outage != nil {
				r.outage.Replayed++
			}
		}
		r.cached, r.staged = r.cached+1, r.staged+1
		r.reached = max(r.reached, r.cached)
		s.sampled(r, samples[i])
	}
	for i := range s.out.Emits[first:] {
		s.out.Emits[first+i].More = len(s.out.Emits) - first - 1 - i
	}
	r.drafted.SetModelDraft(result, r.cached)
}

// handedOver moves a request from prefill to decode.
func (s *State) handedOver(r *request) {
	if r.phase != waiting { // else the prefill group has its cache, and no more tokens are needed
		r.phase = decoding
		s.ledger.handedOver(r)
	}
	if r.Prefill != 0 {
		s.remote.export(r)
		return
	}
	s.clusters.promptRead(r)
}

// pools reports whether a chunk ends with the vector of its prompt.
func pools(c *plan.Run, r *request) bool {
	return r.Pool != pooling.None && c.Start+len(c.Tokens) == r.read
}

func (s *State) measured(rank int, used int64) {
	a := &s.ledger.sockets[rank]
	a.used = used
	if booked := a.reserved + a.Shared; used > booked {
		message := fmt.Sprintf("socket %s uses %d bytes, the ledger reserved %d of %d", a.ID, used, booked, a.Budget)
		s.out.Faults = append(s.out.Faults, Fault{Kind: "ledger", Message: message})
	}
}

// sampled processes the token after the cached ones. A token that was emitted before is only compared;
// a new one is emitted.
func (s *State) sampled(r *request, sample sampler.Result) {
	if r.ended {
		return
	}
	if errors.Is(sample.Err, sampler.ErrBanned) {
		s.finish(r, ReasonError, CodeBanned, sample.Err.Error())
		return
	}
	if sample.Err != nil {
		s.finish(r, ReasonError, CodeSampling, sample.Err.Error())
		return
	}
	index, token := r.cached-len(r.Prompt), sample.Token
	if index < len(r.out) {
		if r.out[index] != token {
			message := fmt.Sprintf("output token %d was %d, the rebuilt sequence gives %d", index, r.out[index], token)
			s.out.Faults = append(s.out.Faults, Fault{Kind: "replay", ID: r.ID, Message: message})
			s.finish(r, ReasonError, CodeDiverged, message)
		}
		return
	}
	r.out = append(r.out, token)
	r.failures = 0
	if r.first < 0 {
		r.first = s.now
	}
	s.endOutage(r)
	s.out.Emits = append(s.out.Emits, Emit{ID: r.ID, Index: index, Cached: r.warm, Result: sample})
	switch reason, over := r.finished(s.cfg.EOS); {
	case over && r.Hold:
		s.contexts.hold(r)
	case over && reason == ReasonLength && (s.ledger.extend(r) || s.leases.awaits(r)):
	case over:
		r.complete = true
		s.finish(r, reason, "", "")
	}
}

// scored emits the log-probabilities of prompt tokens that were not emitted before.
func (s *State) scored(r *request, result *Result) {
	if r.ended {
		return
	}
	var scores []PromptLogprob
	for _, p := range result.Prompt {
		if p.Position == r.scored+1 && p.Position < len(r.Prompt) {
			scores = append(scores, p)
			r.scored++
		}
	}
	if want := min(r.cached, len(r.Prompt)-1); r.scored < want {
		message := fmt.Sprintf("prompt logprobs end at position %d, expected %d", r.scored, want)
		s.out.Faults = append(s.out.Faults, Fault{Kind: "result", ID: r.ID, Message: message})
		s.finish(r, ReasonError, CodeFailed, message)
		return
	}
	if r.Prefill != 0 {
		r.remote.Scores = append(r.remote.Scores, scores...)
	} else if len(scores) > 0 {
		s.out.Scores = append(s.out.Scores, Scores{ID: r.ID, Prompt: scores})
	}
}
