package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// client sends one request and checks, token by token, that the answer is that of an undisturbed
// run.
type client struct {
	w         *world
	spec      batcher.Spec
	want      *truth
	got       int // tokens
	scored    int
	asked     bool // it was accepted
	refused   *batcher.Reject
	cancelled bool
	calm      bool         // it neither disconnects nor cancels
	job       bool         // it survives the coordinator
	next      int          // next event of the job's stream
	received  bool         // it has received something from the coordinator that it is attached to
	at        *coordinator // the last coordinator that accepted it
	end       *batcher.Finish
	ended     time.Duration
}

var policies = []*kvcache.Policy{kvcache.Full(), kvcache.Full(), kvcache.Streaming(2, 14),
	kvcache.Streaming(4, 64), kvcache.Streaming(1, 5)}

// newClient draws a request.
func (w *world) newClient(i int) *client {
	k := &client{w: w}
	s := &k.spec
	s.ID = fmt.Sprint("r", i+1)
	n := 1 + w.rng.IntN(w.cfg.longest)
	if w.cfg.crowded || w.chance(3) {
		n = min(54+w.rng.IntN(12), w.cfg.longest) // its output crosses the end of a block
	}
	s.Prompt = make([]int32, n)
	for p := range s.Prompt {
		s.Prompt[p] = int32(1 + w.rng.IntN(vocab-1))
	}
	s.MaxTokens = 1 + w.rng.IntN(w.cfg.output)
	if w.chance(20) {
		s.MaxTokens = 0
	}
	params := sampler.Default()
	params.Seed, params.Logprobs = w.rng.Uint64(), -1
	s.Sampling = &params
	s.IgnoreEOS = w.chance(2)
	s.Policy = policies[w.rng.IntN(len(policies))]
	s.PromptLogprobs = -1
	if w.chance(6) {
		s.PromptLogprobs = 0
	}
	s.Priority = w.rng.IntN(3) - 1
	k.job = w.chance(2)
	if h := mix(params.Seed, 1); h%2 == 0 { // its prompt starts like others
		same := min(n, int(h>>8%uint64(2*n)))
		if h>>48%2 == 0 && w.cfg.longest > tensor.BlockSlots+2 { // with at least one block
			for same = tensor.BlockSlots; len(s.Prompt) < same+2; {
				s.Prompt = append(s.Prompt, int32(1+h>>16%(vocab-1)))
			}
		}
		for p := range same {
			s.Prompt[p] = int32(1 + mix(h>>4%2, uint64(p))%(vocab-1))
		}
		s.NoCache = h>>40%10 == 0
	}
	return k
}

// begin submits the request as soon as the cluster accepts requests.
func (k *client) begin() {
	c := k.w.coord
	if c.dead || c.frozen || !c.ready() {
		k.w.after(nil, 40*time.Millisecond, k.begin)
		return
	}
	if !k.calm && !k.job && k.w.chance(25) {
		k.spec.Deadline = c.millis() + int64(20+k.w.rng.IntN(1500))
	}
	k.w.logf("client: %s: %d prompt, %d output tokens, %s", k.spec.ID, len(k.spec.Prompt), k.spec.MaxTokens, k.spec.Policy.Spec())
	if k.job {
		k.order(c)
		return
	}
	k.at = c
	no := c.submit(k.spec, &ticket{k: k})
	switch {
	case no != nil:
		k.refused = no
		k.w.logf("client: %s is refused: %s: %s", k.spec.ID, no.Code, no.Message)
		if !slices.Contains([]string{batcher.CodeBudget, batcher.CodeOverloaded, batcher.CodeContext}, no.Code) {
			k.w.watch.fail("%s was refused: %s: %s", k.spec.ID, no.Code, no.Message)
		}
	case !k.asked: // the coordinator died before it answered: the client asks again
		k.w.after(nil, 40*time.Millisecond, k.begin)
	case !k.calm && k.w.chance(8):
		k.w.after(nil, k.w.between(0, 300*time.Millisecond), k.leave)
	}
}

// order requests a job until it is accepted.
func (k *client) order(c *coordinator) {
	w := k.w
	again := func() {
		if !k.asked && k.refused == nil {
			w.after(nil, 40*time.Millisecond, k.begin)
		}
	}
	if c.entries == nil {
		again()
		return
	}
	k.at = c
	answered := false
	w.after(nil, 3*w.cfg.store, func() {
		if !answered {
			answered = true
			again()
		}
	})
	c.accept(k, func(err error) {
		w.after(nil, w.transit(), func() {
			switch {
			case answered || c.dead:
				return
			case err == nil:
				if !k.asked && w.chance(8) {
					w.after(nil, w.between(0, 300*time.Millisecond), k.leave)
				}
				k.asked = true
			case errors.Is(err, journal.ErrDamaged) && w.disk.shelf(k.spec.ID).torn:
				k.refused = &batcher.Reject{ID: k.spec.ID, Code: "record_damaged"}
			default:
				again()
			}
			answered = true
		})
	})
}

// leave cancels: the client disconnects, or cancels its job.
func (k *client) leave() {
	c := k.at
	switch {
	case k.end != nil:
	case c.dead || c.frozen || k.job && c.entries == nil:
		k.w.after(nil, 20*time.Millisecond, k.leave)
	default:
		if !k.cancelled {
			k.cancelled = true
			k.w.logf("client: %s is cancelled", k.spec.ID)
			k.w.cover[Cancelled]++
		}
		if k.job {
			c.cancelJob(k)
			k.w.after(nil, 4*k.w.cfg.store, k.leave) // until it has ended
			return
		}
		c.step(batcher.Cancel{ID: k.spec.ID})
	}
}

// events receives the new events of a job's stream. An event never changes its index or content.
func (k *client) events(e *entry) {
	for ; k.next < len(e.events); k.next++ {
		ev := e.events[k.next].Event
		if p := ev.PromptLogprobs; p != nil {
			scores := make([]batcher.PromptLogprob, len(p))
			for i := range p {
				scores[i] = batcher.PromptLogprob{Position: i + 1, Logprob: p[i].Logprob}
			}
			k.scores(scores)
		}
		if ev.Token != engine.NoToken {
			k.emit(batcher.Emit{ID: k.spec.ID, Index: k.got, Result: sampler.Result{Token: ev.Token}})
		}
	}
	if k.end != nil {
		return
	}
	end := batcher.Finish{ID: k.spec.ID, Output: k.got}
	switch {
	case e.damage != nil:
		end.Reason, end.Code = batcher.ReasonError, "record_damaged"
	case e.state.Phase == jobs.Completed:
		end.Reason = string(e.events[len(e.events)-1].Event.Finish)
	case e.state.Phase == jobs.Cancelled:
		end.Reason = batcher.ReasonCancelled
	case e.state.Phase == jobs.Dead:
		end.Reason, end.Code, end.Message = batcher.ReasonError, e.state.Code, e.state.Message
	default:
		return
	}
	k.asked = true // by an answer that was lost
	k.finish(end)
}

func (k *client) truth() *truth {
	if k.want == nil {
		t := undisturbed(&k.spec)
		k.want = &t
	}
	return k.want
}

func (k *client) scores(prompt []batcher.PromptLogprob) {
	for _, p := range prompt {
		k.scored++
		if want := k.truth().scores; p.Position != k.scored || p.Position > len(want) || p.Logprob != want[p.Position-1] || k.got > 0 {
			k.w.watch.fail("I3: %s: score %+v, the %d. one, after %d tokens", k.spec.ID, p, k.scored, k.got)
			return
		}
	}
}

func (k *client) emit(m batcher.Emit) {
	want := k.truth().tokens
	switch {
	case k.end != nil:
		k.w.watch.fail("I10: %s: token %d after the end", k.spec.ID, m.Index)
	case m.Index != k.got:
		k.w.watch.fail("I2: %s: token %d comes after %d tokens", k.spec.ID, m.Index, k.got)
	case m.Index >= len(want):
		k.w.watch.fail("I3: %s: token %d, the undisturbed run has %d", k.spec.ID, m.Index, len(want))
	case m.Token != want[m.Index]:
		k.w.watch.fail("I3: %s: token %d is %d, the undisturbed run has %d", k.spec.ID, m.Index, m.Token, want[m.Index])
	}
	k.got++
}

func (k *client) finish(f batcher.Finish) {
	k.w.logf("client: %s ends: %s %s %s after %d tokens", f.ID, f.Reason, f.Code, f.Message, f.Output)
	if k.end != nil {
		k.w.watch.fail("I10: %s ended twice", f.ID)
		return
	}
	k.end, k.ended = &f, k.w.now
	k.w.cover[Preempted] += f.Preempted
	switch f.Reason {
	case batcher.ReasonStop, batcher.ReasonLength:
		if t := k.truth(); f.Reason != t.reason || f.Output != len(t.tokens) || k.got != f.Output || k.scored != len(t.scores) {
			k.w.watch.fail("I3: %s ended with %s after %d of %d tokens and %d scores; undisturbed %s after %d and %d",
				f.ID, f.Reason, k.got, f.Output, k.scored, t.reason, len(t.tokens), len(t.scores))
		}
		k.w.cover[Finished]++
	case batcher.ReasonCancelled:
		if !k.cancelled {
			k.w.watch.fail("I1: %s was cancelled by nobody", f.ID)
		}
	case batcher.ReasonError:
		switch {
		case f.Code == batcher.CodeDeadline && k.spec.Deadline > 0:
		case f.Code == batcher.CodeUnserved, f.Code == batcher.CodeBudget, f.Code == batcher.CodeFailed:
			k.w.cover[GivenUp]++
		case k.job && f.Code == "record_damaged" && k.w.disk.shelf(k.spec.ID).torn:
		case k.job && f.Code == "crash_loop" && k.w.lives > uint64(rules.MaxTakeovers):
		case k.job && (f.Code == "store_full" || f.Code == batcher.CodeOverloaded):
			k.w.watch.fail("I1: %s is dead for a fault that must not count: %s", f.ID, f.Code)
		default:
			k.w.watch.fail("I1: %s failed: %s: %s", f.ID, f.Code, f.Message)
		}
	}
}
