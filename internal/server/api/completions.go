package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

func (s *openAI) handleCompletions(w http.ResponseWriter, r *http.Request) {
	g, ok := decodeBody(s.http, w, r, s.decodeCompletions)
	if !ok {
		return
	}
	if g.discard && g.promptLogprobs < 0 { // the prompt echoed: no work for the engine
		s.answerEcho(w, g)
		return
	}
	s.generate(w, r, g)
}

// decodeCompletions turns the body of POST /v1/completions into a generation.
func (s *openAI) decodeCompletions(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body, s.completion)
	if e != nil {
		return nil, e
	}
	return s.completionOf(ctx, f)
}

// completionOf turns the members of a completion into a generation.
func (s *openAI) completionOf(ctx context.Context, f *fields) (*generation, *apiError) {
	g := s.newGeneration(ctx, f)
	g.continues = true
	f.boolean("echo", &g.echo)
	if string(f.get("logprobs")) != "false" { // some clients send the chat form
		var k int64
		if f.integer("logprobs", &k) {
			g.sampling.Logprobs = int(k)
			if g.echo {
				g.promptLogprobs = int(k)
			}
		}
	}
	if g.maxTokens == 0 {
		if g.discard = g.echo; !g.echo {
			f.fail(invalid("max_tokens", "'max_tokens' may be 0 only with 'echo'."))
		}
		if g.keep > 0 { // nothing to rank
			g.n, g.keep = g.keep, 0
		}
	}
	f.fail(s.checkModel(&g.params))
	var prompts []prompt
	if f.err == nil {
		var e *apiError
		prompts, e = s.decodePrompts(ctx, f.get("prompt"), g.specialTokens)
		f.fail(e)
	}
	if g.ignored = s.ignored(f); f.err != nil {
		return nil, f.err
	}
	if e := s.setPrompts(g, prompts); e != nil {
		return nil, e
	}
	g.head = s.newHead("cmpl-", "text_completion", g.model)
	g.newEncoder = func(r *run, out *Stream) encoder {
		return newOpenAIEncoder(r, out, func(d delta) any { return s.completionChoice(g, d) }, func(choices []delta, u usage) any { return s.completionBody(g, choices, u) })
	}
	return g, nil
}

// decodePrompts reads a string, a list of strings, token ids, or a list of
// lists of token ids.
func (s *openAI) decodePrompts(ctx context.Context, v json.RawMessage, special *bool) ([]prompt, *apiError) {
	addSpecial := special == nil || *special
	ctx = tokenizer.WithSearches(ctx)
	if v == nil {
		return nil, invalidCode("prompt", "missing_required_parameter", "'prompt' is required.")
	}
	text := func(raw json.RawMessage) (p prompt, e *apiError) {
		if unmarshal(raw, &p.text) != nil || isNull(raw) {
			return p, invalid("prompt", "'prompt' must be a string, a list of strings, a list of token ids, or a list of lists of token ids.")
		}
		return s.encodePrompt(ctx, p.text, addSpecial)
	}
	list := func(raw json.RawMessage) (prompt, *apiError) {
		ids, problem := parseIDs(raw, s.vocab, len(raw)) // fit refuses a list that is too long, like a text
		if problem == "" && len(ids) == 0 {
			problem = "must not be empty"
		}
		if problem != "" {
			return prompt{}, invalid("prompt", "'prompt' %s.", problem)
		}
		return prompt{ids: ids}, nil
	}
	one := func(p prompt, e *apiError) ([]prompt, *apiError) { return []prompt{p}, e }
	if v[0] != '[' {
		return one(text(v))
	}
	i := 1
	for i < len(v)-1 && v[i] <= ' ' {
		i++
	}
	each := text
	switch {
	case v[i] == ']':
		return nil, invalid("prompt", "'prompt' must not be an empty list.")
	case v[i] == '[':
		each = list
	case isNumber(v[i:]):
		return one(list(v))
	}
	var out []prompt
	e := elements("prompt", "prompts", v, s.cfg.Limits.Prompts, func(_ int, raw json.RawMessage) *apiError {
		p, e := each(raw)
		out = append(out, p)
		return e
	})
	return out, e
}

// answerEcho returns the prompts alone (echo with max_tokens 0). The metrics count them as those
// of any answer, but for a first token: there is none.
func (s *openAI) answerEcho(w http.ResponseWriter, g *generation) {
	g.eachUsage = false
	r := &run{generation: g, service: s.Service, began: time.Now(), promptOnly: true}
	var out *Stream
	if g.stream {
		out = NewStream(w, s.cfg.Limits.WriteTimeout)
	}
	enc := g.newEncoder(r, out)
	for i := range len(g.prompts) * g.n {
		p := g.prompts[i/g.n]
		if p.text == "" {
			p.text = s.tok.Decode(p.ids, !g.keepSpecial)
		}
		r.choices = append(r.choices, &choice{finish: FinishLength})
		r.tallied(Event{}, i, 0, true)
		enc.delta(delta{index: i, text: p.text, first: true, finish: FinishLength})
	}
	r.count()
	if enc.end(); !g.stream {
		s.http.writeJSON(w, http.StatusOK, enc.body())
	}
}

type completionChoice struct {
	Index        int                 `json:"index"`
	Text         string              `json:"text"`
	Logprobs     *completionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
	StopReason   any                 `json:"stop_reason,omitempty"`
}

func (s *openAI) completionChoice(g *generation, d delta) completionChoice {
	out := completionChoice{Index: d.index, Text: d.text, FinishReason: orNil(d.finish), StopReason: d.reason}
	if len(d.tokens) > 0 || d.first {
		out.Logprobs = s.completionLogprobs(g, d.tokens)
	}
	return out
}

type completionBody struct {
	head
	Choices []completionChoice `json:"choices"`
	Usage   usage              `json:"usage"`
}

// completionBody is a text_completion.
func (s *openAI) completionBody(g *generation, choices []delta, u usage) any {
	body := struct {
		head
		Choices []completionChoice `json:"choices"`
		Usage   usage              `json:"usage"`
		Figures *figures           `json:"metrics,omitempty"`
	}{head: g.head, Usage: u, Figures: u.figures}
	for _, d := range choices {
		d.first = true
		body.Choices = append(body.Choices, s.completionChoice(g, d))
	}
	return body
}
