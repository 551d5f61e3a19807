package generate

import (
	"context"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Capabilities of a model, in Ollama's words.
const (
	CanComplete = "completion"
	CanEmbed    = "embedding"
	CanRerank   = "rerank"
)

// Capabilities lists the capabilities of the model.
func (s *Service) Capabilities() (list []string) {
	r := s.Config.Recipe
	if r == nil || !r.Only {
		list = append(list, CanComplete)
	}
	switch {
	case r == nil:
	case r.Scores:
		list = append(list, CanRerank)
	default:
		list = append(list, CanEmbed, CanRerank)
	}
	return list
}

// CanGenerate returns the error of a request for tokens to a model that makes vectors only.
func (s *Service) CanGenerate() *apierr.Error {
	switch r := s.Config.Recipe; {
	case r == nil || !r.Only:
		return nil
	case r.Scores:
		return apierr.InvalidCode("model", "model_does_not_generate",
			"The model `%s` is a reranker and does not generate text. Send a query and documents to /v1/rerank or /v1/score.", s.Config.Models[0])
	}
	return apierr.InvalidCode("model", "model_does_not_generate",
		"The model `%s` makes embeddings and does not generate text. Send texts to /v1/embeddings.", s.Config.Models[0])
}

// CanPool returns the error of a request for vectors to a model that makes none. embeds: the request is
// for the vectors themselves, not for scores.
func (s *Service) CanPool(embeds bool) *apierr.Error {
	switch r := s.Config.Recipe; {
	case r == nil:
		return apierr.InvalidCode("model", "model_has_no_pooling",
			"The model `%s` generates text, and its files do not define how it makes vectors. Serve an embedding model, or start this one with "+
				"%s last or mean.", s.Config.Models[0], options.Name("pooling"))
	case embeds && r.Scores:
		return apierr.InvalidCode("model", "model_does_not_embed",
			"The model `%s` is a reranker and makes no embeddings. Send a query and documents to /v1/rerank or /v1/score.", s.Config.Models[0])
	}
	return nil
}

// PooledParams returns the parameters that all requests for vectors share.
func (s *Service) PooledParams() *jsonbody.Table {
	return s.SharedParams().Pick("model", "user", "metadata", "priority", "cache", "cache_salt",
		"add_special_tokens", "truncate_prompt_tokens")
}

// NewPooled reads these parameters. Errors are left in f.
func (s *Service) NewPooled(f *jsonbody.Object, prefix, object string) *Request {
	g := &Request{Params: Params{N: 1, Sampling: sampler.Default()}, PromptLogprobs: -1, Pool: s.Config.Recipe.Pool}
	use, add, x, user := true, true, int64(0), ""
	f.Text("model", &g.Model)
	f.Text("user", &user)
	f.Ignore("metadata")
	f.Boolean("cache", &use)
	f.Text("cache_salt", &g.salt)
	if f.Integer("priority", &x) {
		g.priority = int(x)
	}
	if f.Boolean("add_special_tokens", &add) {
		g.SpecialTokens = &add
	}
	if f.Integer("truncate_prompt_tokens", &x) {
		g.Truncate(int(x))
	}
	g.noCache = !use
	f.Fail(s.CheckModel(&g.Params))
	g.Head = s.NewHead(prefix, object, g.Model)
	return g
}

// Truncate keeps the first tokens of each text, at most this number, or with -1 as many as the model
// reads.
func (p *Params) Truncate(most int) { p.truncate = most }

// EncodeText makes a prompt of the parts of one text. With special the tokenizer adds its own tokens.
func (s *Service) EncodeText(ctx context.Context, g *Request, parts []engine.Segment, special bool, param string) (Prompt, *apierr.Error) {
	special = special && (g.SpecialTokens == nil || *g.SpecialTokens)
	ids, e := s.Encode(ctx, parts, special, param)
	if e != nil {
		return Prompt{}, e
	}
	if most := s.keeps(g); len(ids) > most {
		var ends []int32 // the tokens that are added to an empty text
		if special {
			if ends, e = s.Encode(ctx, nil, true, param); e != nil {
				return Prompt{}, e
			}
		}
		ids = cutText(ids, ends, most)
	}
	return s.fitText(ids, param)
}

// EncodePair makes a prompt of a query and a document for a model that reads them as two texts.
func (s *Service) EncodePair(ctx context.Context, g *Request, query, document, param string) (Prompt, *apierr.Error) {
	tok, ok := s.Tokenizer.(engine.PairTokenizer)
	if !ok {
		return Prompt{}, apierr.InvalidCode("model", "model_has_no_pair_template", "The tokenizer of this model does not encode pairs of texts.")
	}
	if e := s.farTooLong(len(query)+len(document), param); e != nil {
		return Prompt{}, e
	}
	limit := s.keeps(g)
	if limit == int(^uint(0)>>1) {
		limit = 0
	}
	ids, types, err := tok.EncodePair(ctx, query, document, limit)
	if err != nil {
		return Prompt{}, apierr.InvalidCode(param, "not_encodable", "'%s' cannot be turned into tokens: %v.", param, err)
	}
	return s.fitText(s.Config.Recipe.Typed(ids, types), param)
}

// IDs makes a prompt of token ids.
func (s *Service) IDs(g *Request, ids []int32, param string) (Prompt, *apierr.Error) {
	return s.fitText(ids[:min(len(ids), s.keeps(g))], param)
}

// keeps returns the number of tokens of a text that are not cut.
func (s *Service) keeps(g *Request) int {
	switch {
	case g.truncate > 0:
		return g.truncate
	case g.truncate < 0:
		return s.Config.MaxModelLen
	}
	return int(^uint(0) >> 1)
}

// cutText keeps the first tokens of a text, and of ends, the tokens that the tokenizer adds around
// one, those after it.
func cutText(ids, ends []int32, most int) []int32 {
	before := 0
	for before < min(len(ends), len(ids)) && ends[before] == ids[before] {
		before++
	}
	after := len(ends) - before
	if after <= 0 || after >= most {
		return ids[:most]
	}
	return append(ids[:most-after:most-after], ids[len(ids)-after:]...)
}

func (s *Service) fitText(ids []int32, param string) (Prompt, *apierr.Error) {
	limit := min(s.Config.MaxModelLen, s.Config.Limits.PromptTokens)
	switch {
	case len(ids) == 0:
		return Prompt{}, apierr.Invalid(param, "'%s' must not be empty: it holds no tokens.", param)
	case len(ids) > limit:
		return Prompt{}, apierr.InvalidCode(param, "context_length_exceeded",
			"'%s' has %d tokens, and this model reads at most %d. Send a shorter text, or set 'truncate_prompt_tokens' to -1.",
			param, len(ids), limit)
	}
	return Prompt{Ids: ids}, nil
}
