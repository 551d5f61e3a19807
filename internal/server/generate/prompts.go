package generate

import (
	"context"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// NewGeneration reads the parameters that all protocols share, under OpenAI's names. Errors are
// left in f.
func (s *Service) NewGeneration(ctx context.Context, f *jsonbody.Object) *Request {
	g := &Request{Params: s.ParseParams(f), PromptLogprobs: -1}
	s.parseMasks(ctx, f, &g.Params)
	f.Fail(g.checkMasks())
	return g
}

// defaultMaxTokens is the default of OpenAI's completions.
const defaultMaxTokens = 16

// EncodePrompt makes a prompt of a text. special adds BOS and the like.
func (s *Service) EncodePrompt(ctx context.Context, text string, special bool) (p Prompt, e *apierr.Error) {
	p.Text = text
	p.Ids, e = s.Encode(ctx, []engine.Segment{{Text: text}}, special, "prompt")
	if e == nil && len(p.Ids) == 0 {
		e = apierr.Invalid("prompt", "'prompt' must not be empty: it holds no tokens.")
	}
	return p, e
}

// SetPrompts sets the prompts of a completion, truncated by its parameters, and then max_tokens.
func (s *Service) SetPrompts(g *Request, prompts []Prompt) *apierr.Error {
	if g.turn != nil {
		if len(prompts) != 1 {
			return apierr.Invalid("prompt", "A turn of a session is one prompt, not %d.", len(prompts))
		}
		return s.SetTurn(g, prompts[0].Ids, defaultMaxTokens, "prompt")
	}
	g.Prompts = prompts
	if n := len(g.Prompts) * g.N; n > s.Config.Limits.Choices {
		return apierr.Invalid("n", "%d prompts with 'n' or 'best_of' %d are %d choices; at most %d are allowed.",
			len(g.Prompts), g.N, n, s.Config.Limits.Choices)
	}
	longest := g.Prompts[0].Ids
	for i := range g.Prompts {
		p := &g.Prompts[i]
		if cut := s.truncate(g, p.Ids, defaultMaxTokens); len(cut) < len(p.Ids) {
			*p = Prompt{Ids: cut} // its text is the rest
		}
		if i == 0 || len(p.Ids) > len(longest) {
			longest = p.Ids
		}
	}
	return s.Fit(longest, &g.Params, defaultMaxTokens, "prompt")
}
