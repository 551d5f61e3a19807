package generate

import (
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// tally counts tokens that the choices have accepted and the metrics do not have yet. Counting
// accepted tokens, not those that the engine sent, keeps the counters equal to usage: a stop
// string drops the rest of its step, and max_tokens 0 drops its only token.
type tally struct {
	seen   []bool // by prompt: it is counted
	prompt int    // tokens
	tokens int    // generated
	gaps   []float64
	ended  []int // choices
}

// CountEvent counts the tokens that one event added to a choice, which had before tokens.
func (r *Run) CountEvent(ev engine.Event, choice, before int, ended bool) {
	t, prompt := &r.tally, choice/r.N
	if t.seen == nil {
		t.seen = make([]bool, len(r.Prompts))
	}
	if !t.seen[prompt] {
		t.seen[prompt] = true
		t.prompt += len(r.Prompts[prompt].Ids)
	}
	if added := r.Choices[choice].tokens - before; added > 0 {
		t.tokens += added
		if ev.Timed {
			t.gaps = append(t.gaps, ev.Gap)
		}
	}
	if ended {
		t.ended = append(t.ended, choice)
	}
}

// Count moves the tally to the metrics.
func (r *Run) Count() {
	t, m := &r.tally, r.Service.metrics
	m.prompt.Add(float64(t.prompt))
	m.generated.Add(float64(t.tokens))
	m.adapted.count(r.adapter, t)
	for _, gap := range t.gaps {
		m.itl.Observe(gap)
	}
	for _, i := range t.ended {
		c := r.Choices[i]
		m.finish.WithLabelValues(c.Finish).Inc()
		m.promptTokens.Observe(float64(len(r.Prompts[i/r.N].Ids)))
		m.outputTokens.Observe(float64(c.tokens))
		m.e2e.Observe(time.Since(r.Began).Seconds())
	}
	r.resetTally()
}

// resetTally resets the tally, except for the list of counted prompts.
func (r *Run) resetTally() { r.tally = tally{seen: r.tally.seen} }

// unfinished counts the choices that did not end, by reason: abort or error.
func (r *Run) unfinished(reason string) {
	for _, c := range r.Choices {
		if c.Finish == "" {
			r.Service.metrics.finish.WithLabelValues(reason).Inc()
		}
	}
}

// SequenceTimer times the events of one sequence as they arrive from the engine. It belongs
// to one goroutine.
type SequenceTimer struct {
	m           *metrics
	began, last time.Time
	first       bool // no token has come
	resumed     bool // its first token came in an earlier attempt
	left        int  // tokens of the newest step that are still to come
	timed       bool // the newest step is not the first
	gap         float64
}

// timer of a sequence. resumed: an earlier attempt has yielded tokens of it.
func (r *Run) timer(resumed bool) *SequenceTimer {
	return &SequenceTimer{m: r.Service.metrics, began: r.Began, first: true, resumed: resumed}
}

// Event times the next event and stores the time in it. Whether it counts is decided when the
// event is accepted: after a stop string, the rest of a step does not.
func (t *SequenceTimer) Event(ev *engine.Event) { t.event(ev, time.Now()) }

func (t *SequenceTimer) event(ev *engine.Event, now time.Time) {
	if ev.Finish == engine.FinishError || ev.Finish == engine.FinishCancelled {
		return
	}
	if ev.Token != engine.NoToken {
		t.token(ev.More, now)
		ev.Timed, ev.Gap = t.timed, t.gap
	}
	if x := ev.Timings; x != nil {
		t.m.queueing.Observe(x.Queue.Seconds())
		t.m.prefilling.Observe(x.Prefill.Seconds())
		t.m.decoding.Observe(x.Decode.Seconds())
	}
}

// token times one token, of whose step more follow. The tokens of a step share the time since the
// step before equally.
func (t *SequenceTimer) token(more int, now time.Time) {
	if t.left > 0 {
		t.left--
		return
	}
	t.left = more
	switch {
	case !t.first:
		t.timed, t.gap = true, now.Sub(t.last).Seconds()/float64(more+1)
	case !t.resumed:
		t.m.ttft.Observe(now.Sub(t.began).Seconds())
	}
	t.first, t.last = false, now
}
