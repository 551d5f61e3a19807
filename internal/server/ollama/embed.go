package ollama

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/vectors"
)

// embedded is the answer of /api/embed.
type embedded struct {
	Model      string      `json:"model"`
	Embeddings [][]float32 `json:"embeddings"`
	Total      int64       `json:"total_duration"`
	Load       int64       `json:"load_duration"`
	Tokens     int         `json:"prompt_eval_count"`
}

// embeddedOne is the answer of /api/embeddings, the older route.
type embeddedOne struct {
	Embedding []float32 `json:"embedding"`
}

// embedParams returns the parameters of both routes.
func embedParams(s *generate.Service) *jsonbody.Table {
	text := jsonbody.Text("", 0)
	return jsonbody.NewTable(jsonbody.Text("model", 512), jsonbody.Either("input", text, jsonbody.List("", vectors.MaxInputs, text)),
		jsonbody.Text("prompt", 0),
		jsonbody.Bool("truncate"), jsonbody.Integer("dimensions", 1, int64(vectors.Width(s))),
		jsonbody.ObjectOf("options"), jsonbody.Any("keep_alive"))
}

func (s *API) embedRoutes() []httpserver.Route {
	return []httpserver.Route{
		{Method: http.MethodPost, Path: "/api/embed", Handler: s.GenerateHandler(s.decodeEmbed),
			Docs: []httpserver.Doc{{About: "vectors of texts in Ollama's format", Params: s.embeds.Without("prompt"),
				Required: []string{"model", "input"}, Answer: embedded{}}}},
		{Method: http.MethodPost, Path: "/api/embeddings", Handler: s.GenerateHandler(s.decodeEmbeddings),
			Docs: []httpserver.Doc{{About: "the vector of a text, Ollama's older route", Params: s.embeds.Without("input", "dimensions"),
				Required: []string{"model", "prompt"}, Answer: embeddedOne{}}}},
	}
}

// decodeEmbed decodes the body of POST /api/embed.
func (s *API) decodeEmbed(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	began := time.Now()
	dimensions := int64(0)
	g, e := s.decodeTexts(ctx, body, "input", func(f *jsonbody.Object) { f.Integer("dimensions", &dimensions) })
	if e != nil {
		return nil, e
	}
	g.NewEncoder = vectors.NewEncoder(func(hidden [][]float32, u generate.Usage) any {
		out := embedded{Model: g.Model, Embeddings: make([][]float32, len(hidden)), Tokens: u.PromptTokens,
			Total: time.Since(began).Nanoseconds()}
		for i, h := range hidden {
			out.Embeddings[i] = s.Config.Recipe.Vector(h, int(dimensions))
		}
		return out
	})
	return g, nil
}

// decodeEmbeddings decodes the body of POST /api/embeddings.
func (s *API) decodeEmbeddings(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	g, e := s.decodeTexts(ctx, body, "prompt", func(f *jsonbody.Object) { f.Text("prompt", new(string)) })
	if e != nil {
		return nil, e
	}
	g.NewEncoder = vectors.NewEncoder(func(hidden [][]float32, _ generate.Usage) any {
		return embeddedOne{s.Config.Recipe.Vector(hidden[0], 0)}
	})
	return g, nil
}

// decodeTexts decodes the parameters that both routes share. param names the texts.
func (s *API) decodeTexts(ctx context.Context, body []byte, param string, more func(*jsonbody.Object)) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.embeds)
	if e == nil {
		e = s.CanPool(true)
	}
	if e != nil {
		return nil, e
	}
	truncate, name := true, ""
	f.Text("model", &name)
	f.Boolean("truncate", &truncate)
	f.Ignore("keep_alive")
	more(f)
	ignored, e := ollamaOptions(f.Get("options"), jsonbody.NewObject(s.shared)) // none of them changes a vector
	f.Fail(e)
	if name == "" {
		f.Fail(apierr.InvalidCode("model", "missing_required_parameter", "'model' is required."))
	}
	if f.Get(param) == nil {
		f.Fail(apierr.InvalidCode(param, "missing_required_parameter", "'%s' is required.", param))
	}
	if f.Err != nil {
		return nil, f.Err
	}
	in := s.vectors.NewTexts()
	in.Raw["model"] = jsonbody.MustJSON(s.ollamaName(name))
	in.Set("input", f.Get(param), param)
	if truncate {
		in.Raw["truncate_prompt_tokens"] = json.RawMessage("-1")
	}
	g, e := s.vectors.Texts(ctx, in)
	if e != nil {
		return nil, e
	}
	g.Ignored = append(s.Ignored(f), ignored...)
	return g, f.Err
}
