package api

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// tokenRecord is what logprobs say about one token.
type tokenRecord struct {
	id      int32
	logprob float32
	top     []sampler.TokenLogprob
	first   bool // first token of a prompt: it has no logprob
	offset  int  // where its text begins, in code points of the choice's text
	start   int  // the same in bytes of the output
	end     int
}

// delta is what one event adds to a choice.
type delta struct {
	index   int
	text    string
	tokens  []tokenRecord // with logprobs only; those whose text is now shown
	first   bool          // the first delta of this choice
	finish  string        // "", stop, length, tool_calls
	calls   []madeCall    // with tools
	thought string        // of a model that thinks
	timings *Timings      // with finish, when the engine has them
	reason  any           // the stop string or token id behind "stop"; nil for EOS
}

// choice turns the events of one sequence into deltas: decoding that holds back
// partial runes, stop strings, and the logprobs that belong to what is shown.
// It is pure: no clock, no channel, no socket.
type choice struct {
	index       int
	text        TextStream
	stop        stopper
	gate        *stopGate // nil: stop strings are searched in thoughts, too
	maxTokens   int
	minTokens   int  // stop strings count only in what follows
	includeStop bool // the stop string stays in the output
	logprobs    bool
	stopTokens  []int32
	discard     bool // max_tokens 0: the one generated token is not wanted
	echo        *echo

	cached   int // prompt tokens that were in the prefix cache
	drafts   Drafts
	tokens   int     // generated, also those that show no text
	sum      float64 // of their log-probabilities
	thoughts int     // of them, up to the end of the thought
	started  bool
	finish   string
	bytes    int // decoded, of which
	shown    int // were shown
	runes    int // decoded, plus those of the echo
	pending  []tokenRecord

	parts *parts        // what takes an answer apart into thoughts, text and calls; nil: nothing
	held  []tokenRecord // of text that parts holds back
}

var (
	errEngineClosed  = errors.New("api: the engine closed the stream without a finish reason")
	errEngineOverrun = errors.New("api: the engine sent more tokens than were asked for")
)

// echo is the prompt that goes before the output.
type echo struct {
	text   string
	tokens []tokenRecord
}

// accept applies one event. show is false when there is nothing to send yet.
func (c *choice) accept(ev Event) (d delta, show bool, err error) {
	if c.finish != "" {
		return delta{}, false, nil // after a stop string: the engine's last words
	}
	switch ev.Finish {
	case "", FinishStop, FinishLength:
	case FinishCancelled:
		return delta{}, false, fmt.Errorf("api: the engine cancelled the request%s", because(ev.Err))
	default:
		if ev.Err == nil {
			return delta{}, false, fmt.Errorf("api: the engine failed without a reason (finish %q)", ev.Finish)
		}
		return delta{}, false, ev.Err
	}
	c.cached = max(c.cached, ev.Cached)
	if ev.Drafts != nil {
		c.drafts = *ev.Drafts
	}
	var out, hit string
	if ev.Token != NoToken && !c.discard {
		if c.tokens++; c.tokens > c.maxTokens {
			return delta{}, false, errEngineOverrun
		}
		c.sum += float64(ev.Logprob)
		text := ""
		if ev.Finish != FinishStop { // else it is the stop token itself
			text = c.text.Push(ev.Token)
			text += c.parts.mark(ev.Token, text)
		}
		c.record(ev, text)
		out, hit = c.screen(text)
	}
	if ev.Finish != "" && hit == "" {
		tail := c.text.Flush()
		c.extend(tail)
		more, h := c.screen(tail)
		if out, hit = out+more, h; hit == "" {
			more, hit = c.stop.push(c.gate.flush())
			out += more
		}
		if hit == "" {
			out += c.stop.flush()
		}
	}
	d = delta{index: c.index, first: !c.started, finish: ev.Finish, timings: ev.Timings}
	switch {
	case hit != "":
		if c.includeStop {
			out += hit
		}
		d.finish, d.reason = FinishStop, hit
	case c.discard && ev.Finish != "":
		d.finish = FinishLength
	case ev.Finish == FinishStop:
		for _, id := range c.stopTokens {
			if id == ev.Token {
				d.reason = id
			}
		}
	}
	c.finish = d.finish
	c.shown += len(out)
	d.text = out
	if out == "" && d.finish == "" {
		return delta{}, false, nil
	}
	d.tokens = c.release(hit != "", d.finish != "")
	if c.parts != nil {
		c.parts.take(&d)
		if c.parts.think.Inside() || d.thought != "" && c.parts.think.Late() {
			c.thoughts = c.tokens
		}
		d.tokens, c.held = append(c.held, d.tokens...), nil
		if d.text == "" && d.thought == "" && len(d.calls) == 0 && d.finish == "" {
			c.held = d.tokens
			return delta{}, false, nil
		}
	}
	if c.echo != nil && d.first {
		d.text = c.echo.text + d.text
		d.tokens = append(c.echo.tokens, d.tokens...)
	}
	c.started = true
	return d, true, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// screen passes text by the stop strings, once min_tokens is behind.
func (c *choice) screen(text string) (out, hit string) {
	thought, text := c.gate.split(text)
	if c.tokens <= c.minTokens && c.minTokens > 0 {
		return thought + text, ""
	}
	out, hit = c.stop.push(text)
	return thought + out, hit
}

func (c *choice) record(ev Event, text string) {
	if c.logprobs {
		c.pending = append(c.pending, tokenRecord{id: ev.Token, logprob: ev.Logprob, top: ev.Top, offset: c.runes, start: c.bytes, end: c.bytes})
	}
	c.extend(text)
}

// extend adds text to the last token.
func (c *choice) extend(text string) {
	c.bytes += len(text)
	c.runes += utf8.RuneCountInString(text)
	if n := len(c.pending); n > 0 {
		c.pending[n-1].end = c.bytes
	}
}

// release returns the tokens whose text is shown: all of it, or, where a stop
// string cut the text, its beginning. At the end the rest follows (EOS).
func (c *choice) release(cut, last bool) []tokenRecord {
	n := 0
	for ; n < len(c.pending); n++ {
		r := c.pending[n]
		if cut && r.start >= c.shown || !last && r.end > c.shown {
			break
		}
	}
	out := c.pending[:n:n]
	c.pending = c.pending[n:]
	return out
}
