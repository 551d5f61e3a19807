// Package vectors serves embeddings, reranking and scores: OpenAI's /v1/embeddings, the /rerank of
// Jina, Cohere and vLLM, and vLLM's /score.
package vectors

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Endpoints that a task can be of.
const (
	EndpointEmbeddings = "/v1/embeddings"
	EndpointRerank     = "/v1/rerank"
	EndpointScore      = "/v1/score"
)

// MaxInputs is the largest number of texts, or of pairs, in one request. OpenAI has the same.
const MaxInputs = 2048

// maxDimensions bounds the parameter where the model is not known to make vectors.
const maxDimensions = 1 << 16

// API serves the routes.
type API struct {
	*generate.Service
	embeddings, rerank, score *jsonbody.Table
}

// New serves the vectors of a model.
func New(s *generate.Service) *API {
	shared, text := s.PooledParams(), jsonbody.Text("", 0)
	ids := jsonbody.Param{Kind: jsonbody.KindList, MinLen: 1, Items: &jsonbody.Param{Kind: jsonbody.KindInteger, Max: int64(s.VocabSize - 1)}}
	texts := jsonbody.List("", MaxInputs, text)
	document := jsonbody.Either("", text, jsonbody.ObjectOf(""))
	return &API{Service: s,
		embeddings: shared.With(
			jsonbody.Either("input", text, texts, ids, jsonbody.List("", MaxInputs, ids)),
			jsonbody.Words("encoding_format", "float", "base64"),
			jsonbody.Integer("dimensions", 1, int64(Width(s))),
			jsonbody.Text("prompt_name", 64)),
		rerank: shared.With(
			jsonbody.Text("query", 0), jsonbody.List("documents", MaxInputs, document), jsonbody.Integer("top_n", 1, 1<<31-1),
			jsonbody.Bool("return_documents"), jsonbody.Text("instruction", 0), jsonbody.Bool("raw_scores"),
			jsonbody.Integer("max_tokens_per_doc", 1, 1<<31-1)),
		score: shared.With(
			jsonbody.Either("text_1", text, texts), jsonbody.Either("text_2", text, texts), jsonbody.Either("queries", text, texts),
			jsonbody.Either("documents", text, texts),
			jsonbody.Text("instruction", 0), jsonbody.Bool("raw_scores")),
	}
}

// Width returns the largest value of "dimensions".
func Width(s *generate.Service) int {
	if r := s.Config.Recipe; r != nil {
		return r.Width
	}
	return maxDimensions
}

func (s *API) AddRoutes(h *httpserver.Server) error {
	const post = http.MethodPost
	routes := []httpserver.Route{
		{Method: post, Path: EndpointEmbeddings, Handler: s.GenerateHandler(s.decodeEmbeddings),
			Docs: []httpserver.Doc{{About: "vectors of texts", Params: s.embeddings, Required: []string{"input"}, Answer: embeddingList{}}}},
	}
	for path, returns := range map[string]bool{EndpointRerank: true, "/rerank": true, "/v2/rerank": false} {
		routes = append(routes, httpserver.Route{Method: post, Path: path,
			Handler: s.GenerateHandler(func(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
				return s.decodeRerank(ctx, body, returns)
			}),
			Docs: []httpserver.Doc{{About: "documents in the order of their relevance to a query", Params: s.rerank,
				Required: []string{"query", "documents"}, Answer: rerankBody{}}}})
	}
	for _, path := range []string{EndpointScore, "/score"} {
		routes = append(routes, httpserver.Route{Method: post, Path: path, Handler: s.GenerateHandler(s.decodeScore),
			Docs: []httpserver.Doc{{About: "scores pairs of texts by similarity", Params: s.score, Answer: scoreBody{}}}})
	}
	slices.SortFunc(routes, func(a, b httpserver.Route) int { return strings.Compare(a.Path, b.Path) })
	return h.HandleAll(routes)
}

// Decode decodes a body of an endpoint; false: the endpoint is not one of this package.
func (s *API) Decode(ctx context.Context, endpoint string, body []byte) (g *generate.Request, e *apierr.Error, ok bool) {
	switch endpoint {
	case EndpointEmbeddings:
		g, e = s.decodeEmbeddings(ctx, body)
	case EndpointRerank:
		g, e = s.decodeRerank(ctx, body, true)
	case EndpointScore:
		g, e = s.decodeScore(ctx, body)
	default:
		return nil, nil, false
	}
	return g, e, true
}

// encoder collects the vectors of a request and writes one body.
type encoder struct {
	run    *generate.Run
	hidden [][]float32 // by prompt: the pooled state
	body   func(hidden [][]float32, u generate.Usage) any
}

// NewEncoder returns the encoder of a request whose body is made of the pooled states of its prompts.
func NewEncoder(body func(hidden [][]float32, u generate.Usage) any) func(*generate.Run, *httpserver.Stream) generate.Encoder {
	return func(r *generate.Run, _ *httpserver.Stream) generate.Encoder {
		return &encoder{run: r, hidden: make([][]float32, len(r.Prompts)), body: body}
	}
}

func (e *encoder) Delta(d generate.Delta) { e.hidden[d.Index] = d.Pooled }
func (*encoder) KeepAlive()               {}
func (*encoder) End()                     {}
func (*encoder) Fail(*apierr.Error)       {}
func (e *encoder) Body() any              { return e.body(e.hidden, e.run.Usage()) }

// usage counts the tokens of the texts.
type usage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

func usageOf(u generate.Usage) usage { return usage{u.PromptTokens, u.TotalTokens} }

// prompted returns the parts of a text with the model's own prompt of a name before it. "" is the
// model's default. A name that the model does not have is an error, unless optional.
func prompted(r *recipe.Recipe, name, text string, optional bool) ([]engine.Segment, *apierr.Error) {
	if name == "" {
		name = r.Default
	}
	before, ok := r.Prompts[name]
	if name != "" && !ok && !optional {
		known := strings.Join(slices.Sorted(maps.Keys(r.Prompts)), ", ")
		if known == "" {
			known = "none"
		}
		return nil, apierr.Invalid("prompt_name", "'prompt_name' is %.60q; the prompts of this model are: %s.", name, known)
	}
	return []engine.Segment{{Text: before + text}}, nil
}

// texts reads a text or a list of texts.
func texts(name string, v json.RawMessage) (list []string, e *apierr.Error) {
	var one string
	if jsonbody.Unmarshal(v, &one) == nil {
		return []string{one}, nil
	}
	if len(v) == 0 || v[0] != '[' {
		return nil, apierr.Invalid(name, "'%s' must be a string or a list of strings.", name)
	}
	e = jsonbody.Elements(name, "texts", v, MaxInputs, func(i int, raw json.RawMessage) *apierr.Error {
		if jsonbody.IsNull(raw) || jsonbody.Unmarshal(raw, &one) != nil {
			return apierr.Invalid(name, "'%s[%d]' must be a string.", name, i)
		}
		list = append(list, one)
		return nil
	})
	if e == nil && len(list) == 0 {
		e = apierr.Invalid(name, "'%s' must not be an empty list.", name)
	}
	return list, e
}

// withSearches gives all texts of a request one search budget of the tokenizer.
func withSearches(ctx context.Context) context.Context { return tokenizer.WithSearches(ctx) }
