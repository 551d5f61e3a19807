package generate

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// TokenRecord is the log-probability of one token and its place in the text.
type TokenRecord struct {
	Id      int32
	Logprob float32
	Top     []sampler.TokenLogprob
	First   bool // first token of a prompt: it has no logprob
	Offset  int  // where its text begins, in code points of the choice's text
	start   int  // the same in bytes of the output
	end     int
}

// Delta is the addition of one event to a choice.
type Delta struct {
	Index   int
	Text    string
	Tokens  []TokenRecord   // with logprobs only; those whose text is now shown
	First   bool            // the first delta of this choice
	Pooled  []float32       // with finish, the vector of a prompt
	Finish  string          // "", stop, length, tool_calls
	Calls   []Call          // with tools
	Thought string          // of a model that thinks
	Timings *engine.Timings // with finish, when the engine has them
	Reason  any             // the stop string or token id that caused "stop"; nil for EOS
}

// Choice turns the events of one sequence into deltas: decoding that holds back
// partial runes, stop strings, and the logprobs of the visible text.
// It is pure: no clock, no channel, no socket.
type Choice struct {
	index       int
	text        engine.TextStream
	stop        stopper
	spans       *toolcall.Spans // nil: stop strings are searched in thoughts, too
	maxTokens   int
	minTokens   int  // stop strings count only after this number of tokens
	includeStop bool // the stop string stays in the output
	logprobs    bool
	stopTokens  []int32
	discard     bool // max_tokens 0: the one generated token is discarded
	echo        *echo

	cached   int // prompt tokens that were in the prefix cache
	drafts   engine.Drafts
	tokens   int     // generated, also those that show no text
	sum      float64 // of their log-probabilities
	Thoughts int     // of them, in thoughts
	placed   int     // of them, those that are known to be in a thought or not
	started  bool
	Finish   string
	bytes    int // decoded, of which
	shown    int // were shown
	runes    int // decoded, plus those of the echo
	pending  []TokenRecord

	parts *parts        // splits an answer into thoughts, text and calls; nil: it is all text
	held  []TokenRecord // of text that parts holds back
}

var (
	errEngineClosed  = errors.New("generate: the engine closed the stream without a finish reason")
	errEngineOverrun = errors.New("generate: the engine sent more tokens than the request's maximum")
)

// echo is the prompt that goes before the output.
type echo struct {
	text   string
	tokens []TokenRecord
}

// accept applies one event. show is false when there is nothing to send yet.
func (c *Choice) accept(ev engine.Event) (d Delta, show bool, err error) {
	if c.Finish != "" {
		return Delta{}, false, nil // after a stop string: the engine's last words
	}
	switch ev.Finish {
	case "", engine.FinishStop, engine.FinishLength:
	case engine.FinishCancelled:
		return Delta{}, false, fmt.Errorf("generate: the engine cancelled the request%s", because(ev.Err))
	default:
		if ev.Err == nil {
			return Delta{}, false, fmt.Errorf("generate: the engine failed without a reason (finish %q)", ev.Finish)
		}
		return Delta{}, false, ev.Err
	}
	if ev.Pooled != nil {
		c.started, c.Finish = true, ev.Finish
		return Delta{Index: c.index, First: true, Pooled: ev.Pooled, Finish: ev.Finish, Timings: ev.Timings}, true, nil
	}
	if ev.Token != engine.NoToken {
		c.cached = ev.Cached // less than before if the cache was lost
	}
	if ev.Drafts != nil {
		c.drafts = *ev.Drafts
	}
	var out, hit string
	if ev.Token != engine.NoToken && !c.discard {
		if c.tokens++; c.tokens > c.maxTokens {
			return Delta{}, false, errEngineOverrun
		}
		c.sum += float64(ev.Logprob)
		text := ""
		if ev.Finish != engine.FinishStop { // else it is the stop token itself
			if c.parts.marks(ev.Token) {
				text = c.text.Show(ev.Token)
			} else {
				text = c.text.Push(ev.Token)
				c.parts.note(text)
			}
		}
		c.record(ev, text)
		out, hit = c.screen(c.spans.Push(text))
	}
	if ev.Finish != "" && hit == "" {
		tail := c.text.Flush()
		c.extend(tail)
		more, h := c.screen(append(c.spans.Push(tail), c.spans.Flush()...))
		out, hit = out+more, h
		if hit == "" {
			out += c.stop.flush()
		}
	}
	d = Delta{Index: c.index, First: !c.started, Finish: ev.Finish, Timings: ev.Timings}
	switch {
	case hit != "":
		if c.includeStop {
			out += hit
		}
		d.Finish, d.Reason = engine.FinishStop, hit
	case c.discard && ev.Finish != "":
		d.Finish = engine.FinishLength
	case ev.Finish == engine.FinishStop:
		for _, id := range c.stopTokens {
			if id == ev.Token {
				d.Reason = id
			}
		}
	}
	c.Finish = d.Finish
	c.shown += len(out)
	d.Text = out
	if out == "" && d.Finish == "" {
		return Delta{}, false, nil
	}
	d.Tokens = c.release(hit != "", d.Finish != "")
	if c.parts != nil {
		c.parts.take(&d)
		switch {
		case c.parts.think.Inside() || d.Thought != "" && c.parts.think.Late():
			c.Thoughts = c.tokens
		case c.parts.parser.Thinking(): // an answer may have several thoughts
			c.Thoughts += c.tokens - c.placed
		}
		c.placed = c.tokens
		d.Tokens, c.held = append(c.held, d.Tokens...), nil
		if d.Text == "" && d.Thought == "" && len(d.Calls) == 0 && d.Finish == "" {
			c.held = d.Tokens
			return Delta{}, false, nil
		}
	}
	if c.echo != nil && d.First {
		d.Text = c.echo.text + d.Text
		d.Tokens = append(c.echo.tokens, d.Tokens...)
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

// screen searches the text of the answer for stop strings, after min_tokens. None extends over other text.
func (c *Choice) screen(spans []toolcall.Span) (out, hit string) {
	for _, x := range spans {
		switch {
		case !x.Answer:
			out += c.stop.flush() + x.Text
		case c.tokens <= c.minTokens && c.minTokens > 0:
			out += x.Text
		default:
			text, found := c.stop.push(x.Text)
			if out += text; found != "" {
				return out, found
			}
		}
	}
	return out, ""
}

func (c *Choice) record(ev engine.Event, text string) {
	if c.logprobs {
		c.pending = append(c.pending, TokenRecord{Id: ev.Token, Logprob: ev.Logprob, Top: ev.Top, Offset: c.runes, start: c.bytes, end: c.bytes})
	}
	c.extend(text)
}

// extend adds text to the last token.
func (c *Choice) extend(text string) {
	c.bytes += len(text)
	c.runes += utf8.RuneCountInString(text)
	if n := len(c.pending); n > 0 {
		c.pending[n-1].end = c.bytes
	}
}

// release returns the tokens whose text is shown: all of it, or, where a stop
// string cut the text, its beginning. At the end the rest follows (EOS).
func (c *Choice) release(cut, last bool) []TokenRecord {
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
