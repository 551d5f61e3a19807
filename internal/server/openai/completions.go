package openai

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

func (s *API) handleCompletions(w http.ResponseWriter, r *http.Request) {
	g, ok := httpserver.DecodeBody(s.HTTP, w, r, s.decodeCompletions)
	if !ok {
		return
	}
	named := g.Context != "" && g.Context != generate.NoContext && g.Context != generate.AnyContext
	if g.Discard && g.PromptLogprobs < 0 && !named { // the prompt echoed: no work for the engine; Generate refuses a named context
		s.answerEcho(w, r, g)
		return
	}
	s.Generate(w, r, g)
}

// decodeCompletions decodes the body of POST /v1/completions.
func (s *API) decodeCompletions(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.completion)
	if e != nil {
		return nil, e
	}
	return s.completionOf(ctx, f)
}

// completionOf decodes the members of a completion.
func (s *API) completionOf(ctx context.Context, f *jsonbody.Object) (*generate.Request, *apierr.Error) {
	g := s.NewGeneration(ctx, f)
	g.Continues = true
	f.Boolean("echo", &g.Echo)
	var k int64
	switch string(f.Get("logprobs")) { // some clients send the chat form
	case "true": // of the tokens themselves
		g.Sampling.Logprobs = 0
	case "false":
	default:
		if f.Integer("logprobs", &k) {
			g.Sampling.Logprobs = int(k)
		}
	}
	if g.Echo {
		g.PromptLogprobs = g.Sampling.Logprobs
	}
	if g.MaxTokens == 0 {
		if g.Discard = g.Echo; !g.Echo {
			f.Fail(apierr.Invalid("max_tokens", "'max_tokens' may be 0 only with 'echo'."))
		}
		if g.Keep > 0 { // nothing to rank
			g.N, g.Keep = g.Keep, 0
		}
	}
	f.Fail(s.CheckModel(&g.Params))
	if f.Err == nil {
		f.Fail(s.OpenSession(ctx, g, ""))
	}
	var prompts []generate.Prompt
	if f.Err == nil {
		var e *apierr.Error
		prompts, e = s.decodePrompts(ctx, f.Get("prompt"), g.SpecialTokens)
		f.Fail(e)
	}
	if g.Ignored = s.Ignored(f); f.Err != nil {
		return nil, f.Err
	}
	if e := s.SetPrompts(g, prompts); e != nil {
		return nil, e
	}
	g.Head = s.NewHead("cmpl-", "text_completion", g.Model)
	g.NewEncoder = func(r *generate.Run, out *httpserver.Stream) generate.Encoder {
		return newEncoder(r, out, func(d generate.Delta) any {
			return s.completionChoice(g, d)
		}, func(choices []generate.Delta, u generate.Usage) any { return s.completionBody(g, choices, u) })
	}
	return g, nil
}

// decodePrompts reads a string, a list of strings, token ids, or a list of
// lists of token ids.
func (s *API) decodePrompts(ctx context.Context, v json.RawMessage, special *bool) ([]generate.Prompt, *apierr.Error) {
	addSpecial := special == nil || *special
	ctx = tokenizer.WithSearches(ctx)
	if v == nil {
		return nil, apierr.InvalidCode("prompt", "missing_required_parameter", "'prompt' is required.")
	}
	text := func(raw json.RawMessage) (p generate.Prompt, e *apierr.Error) {
		if jsonbody.Unmarshal(raw, &p.Text) != nil || jsonbody.IsNull(raw) {
			return p, apierr.Invalid("prompt", "'prompt' must be a string, a list of strings, a list of token ids, or a list of lists of token ids.")
		}
		return s.EncodePrompt(ctx, p.Text, addSpecial)
	}
	list := func(raw json.RawMessage) (generate.Prompt, *apierr.Error) {
		ids, problem := jsonbody.ParseIDs(raw, s.VocabSize, len(raw)) // fit refuses a list that is too long, like a text
		if problem == "" && len(ids) == 0 {
			problem = "must not be empty"
		}
		if problem != "" {
			return generate.Prompt{}, apierr.Invalid("prompt", "'prompt' %s.", problem)
		}
		return generate.Prompt{Ids: ids}, nil
	}
	one := func(p generate.Prompt, e *apierr.Error) ([]generate.Prompt, *apierr.Error) {
		return []generate.Prompt{p}, e
	}
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
		return nil, apierr.Invalid("prompt", "'prompt' must not be an empty list.")
	case v[i] == '[':
		each = list
	case jsonbody.IsNumber(v[i:]):
		return one(list(v))
	}
	var out []generate.Prompt
	e := jsonbody.Elements("prompt", "prompts", v, s.Config.Limits.Prompts, func(_ int, raw json.RawMessage) *apierr.Error {
		p, e := each(raw)
		out = append(out, p)
		return e
	})
	return out, e
}

// answerEcho answers with the prompts alone (echo with max_tokens 0). The metrics count them, but
// no first token.
func (s *API) answerEcho(w http.ResponseWriter, req *http.Request, g *generate.Request) {
	if e := s.Admit(w, req, g); e != nil {
		s.HTTP.Fail(w, e, false)
		return
	}
	g.EachUsage = false
	r := &generate.Run{Request: g, Service: s.Service, Began: time.Now(), PromptOnly: true}
	var out *httpserver.Stream
	if g.Stream {
		out = httpserver.NewStream(w, s.Config.Limits.WriteTimeout)
	}
	enc := g.NewEncoder(r, out)
	for i := range len(g.Prompts) * g.N {
		p := g.Prompts[i/g.N]
		if p.Text == "" {
			p.Text = s.Tokenizer.Decode(p.Ids, !g.KeepSpecial)
		}
		r.Choices = append(r.Choices, &generate.Choice{Finish: engine.FinishLength})
		r.CountEvent(engine.Event{}, i, 0, true)
		enc.Delta(generate.Delta{Index: i, Text: p.Text, First: true, Finish: engine.FinishLength})
	}
	r.Count()
	r.Charge(req)
	if enc.End(); !g.Stream {
		s.HTTP.WriteJSON(w, http.StatusOK, enc.Body())
	}
}

type completionChoice struct {
	Index        int                 `json:"index"`
	Text         string              `json:"text"`
	Logprobs     *completionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
	StopReason   any                 `json:"stop_reason,omitempty"`
}

func (s *API) completionChoice(g *generate.Request, d generate.Delta) completionChoice {
	out := completionChoice{Index: d.Index, Text: d.Text, FinishReason: jsonbody.OrNil(d.Finish), StopReason: d.Reason}
	if len(d.Tokens) > 0 || d.First {
		out.Logprobs = s.completionLogprobs(g, d.Tokens)
	}
	return out
}

type completionBody struct {
	generate.Head
	Choices []completionChoice `json:"choices"`
	Usage   generate.Usage     `json:"usage"`
}

// completionBody returns a text_completion.
func (s *API) completionBody(g *generate.Request, choices []generate.Delta, u generate.Usage) any {
	body := struct {
		completionBody
		Figures *generate.Figures `json:"metrics,omitempty"`
	}{completionBody{Head: g.Head, Usage: u}, u.Figures}
	for _, d := range choices {
		d.First = true
		body.Choices = append(body.Choices, s.completionChoice(g, d))
	}
	return body
}
