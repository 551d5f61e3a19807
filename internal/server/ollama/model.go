package ollama

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// ollamaVersion is the version of Ollama that the routes below /api/ match. Clients compare it
// with the lowest that they work with: VS Code requires 0.6.4, Codex 0.13.4.
const ollamaVersion = "0.13.5"

// ModelCard describes a model. A field that is zero is not known.
type ModelCard struct {
	Architecture string // "llama", "qwen3"
	Format       string // "safetensors" or "gguf"
	Quantization string // of the weights in memory: "BF16", "Q4_0"
	Digest       string // 64 hexadecimal digits
	Parameters   int64
	Bytes        int64 // of the files
	Modified     time.Time

	Layers, Hidden, Heads, KVHeads, FFN int
}

type ollamaDetails struct {
	Parent        string   `json:"parent_model"`
	Format        string   `json:"format"`
	Family        string   `json:"family"`
	Families      []string `json:"families"`
	ParameterSize string   `json:"parameter_size"`
	Quantization  string   `json:"quantization_level"`
}

// ollamaModel is an entry of /api/tags, and with the last three of /api/ps.
type ollamaModel struct {
	Name     string        `json:"name"`
	Model    string        `json:"model"`
	Modified *time.Time    `json:"modified_at,omitempty"`
	Size     int64         `json:"size"`
	Digest   string        `json:"digest"`
	Details  ollamaDetails `json:"details"`
	Expires  *time.Time    `json:"expires_at,omitempty"`
	VRAM     *int64        `json:"size_vram,omitempty"`
	Context  int           `json:"context_length,omitempty"`
	Can      []string      `json:"capabilities,omitempty"`
}

type ollamaModels struct {
	Models []ollamaModel `json:"models"`
}

// ollamaShown is the answer of /api/show.
type ollamaShown struct {
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters"`
	Template     string         `json:"template"`
	Details      ollamaDetails  `json:"details"`
	Info         map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
	Modified     time.Time      `json:"modified_at"`
}

type ollamaStatus struct {
	Status string `json:"status"`
}

func (s *API) ollamaDetails() ollamaDetails {
	c := &s.card
	return ollamaDetails{Format: c.Format, Family: c.Architecture, Families: []string{c.Architecture},
		ParameterSize: parameterSize(c.Parameters), Quantization: c.Quantization}
}

// parameterSize writes a number of parameters as Ollama does: 7.6B, 135M.
func parameterSize(n int64) string {
	for _, u := range [...]struct {
		size float64
		name string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		x := float64(n) / u.size
		switch {
		case x >= 100:
			return fmt.Sprintf("%.0f%s", x, u.name)
		case x >= 1:
			return fmt.Sprintf("%.1f%s", x, u.name)
		}
	}
	return strconv.Itoa(int(n))
}

func (s *API) ollamaModel(name string) ollamaModel {
	return ollamaModel{Name: name, Model: name, Size: s.card.Bytes, Digest: cmp.Or(s.card.Digest, s.Config.SystemFingerprint),
		Details: s.ollamaDetails()}
}

func (s *API) modified() time.Time {
	if s.card.Modified.IsZero() {
		return s.Started.UTC()
	}
	return s.card.Modified.UTC()
}

// handleOllamaTags lists the models, as /v1/models does.
func (s *API) handleOllamaTags(w http.ResponseWriter, _ *http.Request) {
	var list ollamaModels
	for _, p := range s.peers {
		list.Models = append(list.Models, p.tags()...)
	}
	s.HTTP.WriteJSON(w, http.StatusOK, list)
}

// tags lists the names of one model and its adapters.
func (s *API) tags() (list []ollamaModel) {
	for _, name := range s.Config.Models {
		m, at := s.ollamaModel(name), s.modified()
		m.Modified, m.Can = &at, s.capabilities()
		list = append(list, m)
	}
	if all := s.Adapters(); all != nil {
		for _, a := range all.Adapters() {
			m, at := s.ollamaModel(a.Name), a.Created.UTC()
			m.Digest, m.Modified, m.Details.Parent = a.ID, &at, s.Config.Models[0]
			list = append(list, m)
		}
	}
	return list
}

// handleOllamaRunning lists the loaded models: every model under its first name.
func (s *API) handleOllamaRunning(w http.ResponseWriter, _ *http.Request) {
	var list ollamaModels
	for _, p := range s.peers {
		m := p.ollamaModel(p.Config.Models[0])
		never := p.Started.UTC().AddDate(200, 0, 0) // it is not unloaded
		m.Expires, m.VRAM, m.Context = &never, &m.Size, p.Config.MaxModelLen
		list.Models = append(list.Models, m)
	}
	s.HTTP.WriteJSON(w, http.StatusOK, list)
}

func (s *API) handleOllamaVersion(w http.ResponseWriter, _ *http.Request) {
	s.HTTP.WriteJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{ollamaVersion})
}

// checkOllamaModel reads the name of the model, "model" or the older "name". Errors are left in f.
func (s *API) checkOllamaModel(f *jsonbody.Object) {
	var p generate.Params
	var name string
	f.Text("model", &p.Model)
	f.Text("name", &name)
	p.Model = cmp.Or(p.Model, name)
	if p.Model == "" {
		f.Fail(apierr.InvalidCode("model", "missing_required_parameter", "'model' is required."))
	}
	p.Model = s.ollamaName(p.Model)
	f.Fail(s.CheckModel(&p))
}

// ollamaName takes Ollama's default tag off a name that is served without it.
func (s *API) ollamaName(name string) string {
	if base, latest := strings.CutSuffix(name, ":latest"); latest && !slices.Contains(s.Config.Models, name) {
		return base
	}
	return name
}

// capabilities lists the capabilities of the model as /api/show and /api/tags name them.
func (s *API) capabilities() []string {
	list := s.Capabilities()
	if !slices.Contains(list, generate.CanComplete) {
		return list
	}
	if s.Template != nil { // a template without tools gets them in the system message
		list = append(list, "tools")
	}
	if s.Thinks {
		list = append(list, "thinking")
	}
	return list
}

// showModel answers /api/show.
func (s *API) showModel(_ context.Context, body []byte) (*ollamaShown, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.model)
	if e != nil {
		return nil, e
	}
	verbose := false
	f.Boolean("verbose", &verbose) // Ollama then adds the vocabulary, which /tokenizer_info names here
	if s.checkOllamaModel(f); f.Err != nil {
		return nil, f.Err
	}
	c := &s.card
	out := &ollamaShown{Details: s.ollamaDetails(), Modified: s.modified(), Capabilities: s.capabilities(), Info: map[string]any{
		"general.architecture": c.Architecture, "general.basename": s.Config.Models[0], "general.parameter_count": c.Parameters,
		c.Architecture + ".context_length": s.Config.MaxModelLen, c.Architecture + ".vocab_size": s.VocabSize,
	}}
	for name, n := range map[string]int{"block_count": c.Layers, "embedding_length": c.Hidden, "feed_forward_length": c.FFN,
		"attention.head_count": c.Heads, "attention.head_count_kv": c.KVHeads} {
		if n > 0 {
			out.Info[c.Architecture+"."+name] = n
		}
	}
	if t, ok := s.Template.(interface{ Source() string }); ok {
		out.Template = t.Source()
	}
	out.Modelfile = "FROM " + s.Config.Models[0] + "\n"
	var set []string
	if t := s.Config.DefaultTemperature; t != 1 {
		set = append(set, fmt.Sprintf("temperature %g", t))
	}
	if p := s.Config.DefaultTopP; p != 1 {
		set = append(set, fmt.Sprintf("top_p %g", p))
	}
	if k := s.Config.DefaultTopK; k > 0 {
		set = append(set, fmt.Sprintf("top_k %d", k))
	}
	out.Parameters = strings.Join(set, "\n")
	return out, nil
}

// handleOllamaPull answers with success for a served model; no other can be fetched.
func (s *API) handleOllamaPull(w http.ResponseWriter, r *http.Request) {
	stream, ok := httpserver.DecodeBody(s.HTTP, w, r, func(_ context.Context, body []byte) (bool, *apierr.Error) {
		f, e := jsonbody.Parse(body, s.model)
		if e != nil {
			return false, e
		}
		stream := true
		f.Boolean("stream", &stream)
		s.checkOllamaModel(f)
		return stream, f.Err
	})
	switch {
	case !ok:
	case !stream:
		s.HTTP.WriteJSON(w, http.StatusOK, ollamaStatus{"success"})
	default:
		w.Header().Set("Content-Type", "application/x-ndjson")
		s.HTTP.Deadline(w)
		enc := json.NewEncoder(w)
		for _, status := range [...]string{"pulling manifest", "success"} {
			_ = enc.Encode(ollamaStatus{status}) // a failed write means that the client is gone
		}
	}
}
