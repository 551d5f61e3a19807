package vectors

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// pairs are queries and documents to score: pair i is (queries[i], documents[i]), or one query with
// every document.
type pairs struct {
	queries, documents []string
	instruction        string
	queryParam, param  string // names the queries and the documents in errors
	rawScores          bool
}

// finish sets g.Prompts to the prompts of the pairs, and g.Ignored. It returns the first error of the form.
func (s *API) finish(ctx context.Context, f *jsonbody.Object, g *generate.Request, p *pairs) *apierr.Error {
	if f.Err == nil {
		var e *apierr.Error
		g.Prompts, e = s.prompts(ctx, g, p)
		f.Fail(e)
	}
	g.Ignored = s.Ignored(f)
	return f.Err
}

// prompts makes the prompts of pairs: one for each pair if the model scores pairs, else those of the
// queries, then those of the documents.
func (s *API) prompts(ctx context.Context, g *generate.Request, p *pairs) (out []generate.Prompt, e *apierr.Error) {
	r := s.Config.Recipe
	add := func(q generate.Prompt, failed *apierr.Error) {
		if out, e = append(out, q), failed; e != nil {
			out = nil
		}
	}
	ctx = withSearches(ctx)
	if r.Scores {
		for i := 0; i < len(p.documents) && e == nil; i++ {
			if r.Texts {
				add(s.EncodePair(ctx, g, p.query(i), p.documents[i], p.param))
				continue
			}
			parts, failed := s.pair(p.query(i), p.documents[i], p.instruction)
			if failed != nil {
				return nil, failed
			}
			add(s.EncodeText(ctx, g, parts, false, p.param))
		}
		return out, e
	}
	for i := 0; i < len(p.queries) && e == nil; i++ {
		add(s.EmbedPrompt(ctx, g, "query", p.queries[i], p.queryParam, true))
	}
	for i := 0; i < len(p.documents) && e == nil; i++ {
		add(s.EmbedPrompt(ctx, g, "document", p.documents[i], p.param, true))
	}
	return out, e
}

func (p *pairs) query(i int) string { return p.queries[min(i, len(p.queries)-1)] }

// rendersPairs reports whether the chat template has the roles query and document. Another template
// would leave their messages out.
func (s *API) rendersPairs() bool {
	t, ok := s.Template.(interface{ Source() string })
	return ok && strings.Contains(t.Source(), "query") && strings.Contains(t.Source(), "document")
}

// pair returns the prompt of a query and a document. Their control tokens stay text.
func (s *API) pair(query, document, instruction string) ([]engine.Segment, *apierr.Error) {
	r := s.Config.Recipe
	if s.rendersPairs() || r.Pair == "" {
		if !s.rendersPairs() {
			return nil, apierr.InvalidCode("model", "model_has_no_pair_template",
				"The model scores pairs, and neither its files nor %s define the prompt of a query and a document.", options.Name("chat-template"))
		}
		c := engine.Conversation{Messages: []engine.Message{{Role: "query", Content: query}, {Role: "document", Content: document}},
			AddGenerationPrompt: true}
		if instruction != "" {
			c.Messages = append([]engine.Message{{Role: "system", Content: instruction}}, c.Messages...)
		}
		parts, err := s.Template.Render(c)
		if err != nil {
			return nil, apierr.Invalid("documents", "The chat template refuses a query and a document: %v.", err)
		}
		return parts, nil
	}
	if instruction == "" {
		instruction = recipe.Instruction
	}
	values := map[string]string{"{query}": query, "{document}": document, "{instruction}": instruction}
	var parts []engine.Segment
	for rest := r.Pair; rest != ""; {
		at, name := len(rest), ""
		for key := range values {
			if i := strings.Index(rest, key); i >= 0 && i < at {
				at, name = i, key
			}
		}
		parts = append(parts, engine.Segment{Text: rest[:at]})
		if rest = rest[at:]; name != "" {
			parts = append(parts, engine.Segment{Text: values[name], Literal: true})
			rest = rest[len(name):]
		}
	}
	return parts, nil
}

// scores computes the score of each pair from the pooled states of the prompts.
func (s *API) scores(p *pairs, hidden [][]float32) []float32 {
	r := s.Config.Recipe
	out := make([]float32, len(p.documents))
	if r.Scores {
		for i, h := range hidden {
			if out[i] = r.Score(h); !p.rawScores {
				out[i] = recipe.Relevance(out[i])
			}
		}
		return out
	}
	vectors := make([][]float32, len(hidden))
	for i, h := range hidden {
		vectors[i] = r.Vector(h, 0)
	}
	for i := range out {
		out[i] = recipe.Cosine(vectors[min(i, len(p.queries)-1)], vectors[len(p.queries)+i])
	}
	return out
}

// newPairs reads the parameters that reranking and scores share.
func (s *API) newPairs(f *jsonbody.Object, prefix, object string) (*generate.Request, *pairs, *apierr.Error) {
	if e := s.CanPool(false); e != nil {
		return nil, nil, e
	}
	g, p := s.NewPooled(f, prefix, object), &pairs{}
	f.Text("instruction", &p.instruction)
	f.Boolean("raw_scores", &p.rawScores)
	if r := s.Config.Recipe; p.instruction != "" && (!r.Scores || r.Texts) {
		f.Fail(apierr.InvalidCode("instruction", "unsupported_parameter",
			"'instruction' is for rerankers that read a prompt; this model reads texts alone."))
	}
	return g, p, nil
}

// documentsOf reads a list of texts, or of objects with a text.
func documentsOf(v json.RawMessage) (list []string, e *apierr.Error) {
	if len(v) == 0 || v[0] != '[' {
		return nil, apierr.Invalid("documents", "'documents' must be a list of strings, or of objects with 'text'.")
	}
	e = jsonbody.Elements("documents", "documents", v, MaxInputs, func(i int, raw json.RawMessage) *apierr.Error {
		var text *string
		if raw[0] == '{' {
			var d struct {
				Text *string `json:"text"`
			}
			if jsonbody.Unmarshal(raw, &d) == nil {
				text = d.Text
			}
		} else if jsonbody.Unmarshal(raw, &text) != nil {
			text = nil
		}
		if text == nil {
			return apierr.Invalid("documents", "'documents[%d]' must be a string, or an object with 'text'.", i)
		}
		list = append(list, *text)
		return nil
	})
	if e == nil && len(list) == 0 {
		e = apierr.Invalid("documents", "'documents' must not be an empty list.")
	}
	return list, e
}
