package api

import "context"

// newGeneration reads the parameters that all protocols share, under OpenAI's names. Errors are
// left in f.
func (s *Service) newGeneration(ctx context.Context, f *fields) *generation {
	g := &generation{params: s.parseParams(f), promptLogprobs: -1}
	s.parseMasks(ctx, f, &g.params)
	f.fail(g.checkMasks())
	return g
}

// defaultMaxTokens of completions is OpenAI's.
const defaultMaxTokens = 16

// encodePrompt makes a prompt of a text. special adds BOS and the like.
func (s *Service) encodePrompt(ctx context.Context, text string, special bool) (p prompt, e *apiError) {
	p.text = text
	p.ids, e = s.encode(ctx, []Segment{{Text: text}}, special, "prompt")
	if e == nil && len(p.ids) == 0 {
		e = invalid("prompt", "'prompt' must not be empty: it holds no tokens.")
	}
	return p, e
}

// setPrompts gives a completion its prompts, cut as it asks for, and settles max_tokens.
func (s *Service) setPrompts(g *generation, prompts []prompt) *apiError {
	g.prompts = prompts
	if n := len(g.prompts) * g.n; n > s.cfg.Limits.Choices {
		return invalid("n", "%d prompts with 'n' or 'best_of' %d are %d choices; at most %d are allowed.", len(g.prompts), g.n, n, s.cfg.Limits.Choices)
	}
	longest := g.prompts[0].ids
	for i := range g.prompts {
		p := &g.prompts[i]
		if cut := g.cut(p.ids, s.cfg.MaxModelLen); len(cut) < len(p.ids) {
			*p = prompt{ids: cut} // its text is what is left
		}
		if i == 0 || len(p.ids) > len(longest) {
			longest = p.ids
		}
	}
	return s.fit(longest, &g.params, defaultMaxTokens, "prompt")
}
