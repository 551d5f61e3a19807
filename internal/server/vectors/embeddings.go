package vectors

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// embeddingList is the answer of /v1/embeddings.
type embeddingList struct {
	Object string      `json:"object"`
	Data   []embedding `json:"data"`
	Model  string      `json:"model"`
	Usage  usage       `json:"usage"`
}

type embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // numbers, or with base64 a string
}

// decodeEmbeddings decodes the body of POST /v1/embeddings.
func (s *API) decodeEmbeddings(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.embeddings)
	if e != nil {
		return nil, e
	}
	var form string
	var dimensions int64
	if f.Text("encoding_format", &form); form != "" && form != "float" && form != "base64" {
		f.Fail(apierr.Invalid("encoding_format", "'encoding_format' must be float or base64, got %.60q.", form))
	}
	f.Integer("dimensions", &dimensions)
	g, e := s.texts(ctx, f)
	if e != nil {
		return nil, e
	}
	if g.Ignored = s.Ignored(f); f.Err != nil {
		return nil, f.Err
	}
	g.NewEncoder = NewEncoder(func(hidden [][]float32, u generate.Usage) any {
		out := embeddingList{Object: "list", Model: g.Model, Usage: usageOf(u), Data: make([]embedding, len(hidden))}
		for i, h := range hidden {
			v := s.Config.Recipe.Vector(h, int(dimensions))
			out.Data[i] = embedding{Object: "embedding", Index: i, Embedding: v}
			if form == "base64" {
				out.Data[i].Embedding = encode64(v)
			}
		}
		return out
	})
	return g, nil
}

// texts reads the inputs of a request for embeddings. The caller sets its encoder.
func (s *API) texts(ctx context.Context, f *jsonbody.Object) (*generate.Request, *apierr.Error) {
	if e := s.CanPool(true); e != nil {
		return nil, e
	}
	g, prompt := s.NewPooled(f, "embd-", "list"), ""
	f.Text("prompt_name", &prompt)
	if f.Get("input") == nil {
		f.Fail(apierr.InvalidCode("input", "missing_required_parameter", "'input' is required."))
	}
	if f.Err == nil {
		var e *apierr.Error
		g.Prompts, e = s.inputs(withSearches(ctx), g, f.Get("input"), prompt)
		f.Fail(e)
	}
	return g, f.Err
}

// NewTexts returns a request for embeddings without members, which another protocol sets under OpenAI's names.
func (s *API) NewTexts() *jsonbody.Object { return jsonbody.NewObject(s.embeddings) }

// Texts reads the inputs of such a request. The caller sets the encoder.
func (s *API) Texts(ctx context.Context, f *jsonbody.Object) (*generate.Request, *apierr.Error) {
	return s.texts(ctx, f)
}

// encode64 returns the base64 of the elements as little-endian float32.
func encode64(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// inputs reads a text, a list of texts, token ids, or a list of lists of token ids.
func (s *API) inputs(ctx context.Context, g *generate.Request, v json.RawMessage, prompt string) (out []generate.Prompt, e *apierr.Error) {
	add := func(p generate.Prompt, e *apierr.Error) *apierr.Error {
		out = append(out, p)
		return e
	}
	ids := func(raw json.RawMessage) *apierr.Error {
		list, problem := jsonbody.ParseIDs(raw, s.VocabSize, len(raw)) // a list that is too long is refused like a text
		if problem != "" {
			return apierr.Invalid("input", "'input' %s.", problem)
		}
		return add(s.IDs(g, list, "input"))
	}
	if v[0] == '[' {
		i := 1
		for i < len(v)-1 && v[i] <= ' ' {
			i++
		}
		switch {
		case jsonbody.IsNumber(v[i:]):
			return out, ids(v)
		case v[i] == '[':
			e = jsonbody.Elements("input", "inputs", v, MaxInputs, func(_ int, raw json.RawMessage) *apierr.Error { return ids(raw) })
			return out, e
		}
	}
	list, e := texts("input", v)
	for _, text := range list {
		if e == nil {
			e = add(s.EmbedPrompt(ctx, g, prompt, text, "input", false))
		}
	}
	return out, e
}

// EmbedPrompt makes a prompt of a text, with the model's own prompt of a name before it.
func (s *API) EmbedPrompt(ctx context.Context, g *generate.Request, name, text, param string,
	optional bool) (generate.Prompt, *apierr.Error) {
	if text == "" {
		return generate.Prompt{}, apierr.Invalid(param, "'%s' must not be an empty string.", param)
	}
	parts, e := prompted(s.Config.Recipe, name, text, optional)
	if e != nil {
		return generate.Prompt{}, e
	}
	return s.EncodeText(ctx, g, parts, true, param)
}
