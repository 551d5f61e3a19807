package cluster

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/ollama"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// Check checks the settings of a server before any part of it starts: s for its checkpoint,
// template and tool parser of a, and the cache memory per node in bytes. It reads no weights. It
// returns s with the defaults filled in.
func Check(s ServeConfig, a APIConfig, caches int64) (ServeConfig, error) {
	ck, err := checkpoint.OpenSwiftKV(s.Model, s.SwiftKV)
	if err != nil {
		return s, err
	}
	defer ck.Close()
	s.ensureDefaults(&ck.Config)
	if err := s.Validate(&ck.Config); err != nil {
		return s, err
	}
	policy, err := kvpolicy.Parse(s.Policy)
	if err != nil {
		return s, err
	}
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return s, err
	}
	geometry := shard.GeometryOf(&ck.Config, kv)
	if err := geometry.Fits(policy); err != nil {
		return s, err
	}
	if least := kvcache.ResidentBytes(geometry, 1, 1, policy); caches < least {
		return s, fmt.Errorf("cluster: %s %d: the caches of the shortest request take %d bytes of a node: set at least that",
			options.Name("kv-memory"), caches, least)
	}
	if parser := cmp.Or(a.ToolParser, s.ToolParser); parser != "" && !slices.Contains(toolcall.Families, toolcall.Family(parser)) {
		return s, fmt.Errorf("cluster: %s %q: known are %v", options.Name("tool-parser"), parser, toolcall.Families)
	}
	if _, err := chatTemplate(ck.Dir, cmp.Or(a.Template, s.Template)); err != nil {
		return s, err
	}
	if strings.HasPrefix(ck.Dir, checkpoint.RandomPrefix) {
		return s, nil // without a tokenizer: for measurements, which use no API
	}
	tok, err := tokenizer.Load(ck.Dir)
	if err != nil {
		return s, err
	}
	_, err = recipeOf(ck, &s, tok)
	return s, err
}

// Engine is the engine that NewAPI serves: a Coordinator or a Local.
type Engine interface {
	engine.Engine
	CacheBytes(policy string, prompt, output int) (bytes, full int64)
	ContextLimit(policy string) int
}

// APIConfig has the settings of the HTTP API.
type APIConfig struct {
	Keys   []httpserver.Key
	Audit  *slog.Logger
	TLS    *tls.Config
	Strict bool // refuse unknown parameters
	// AllowOrigins are the additional origins whose web pages may use the API.
	AllowOrigins []string
	Template     string // file with a chat template that replaces the checkpoint's
	ToolParser   string // a toolcall.Family; "": derived from the template
	Version      string
	Logger       *slog.Logger
}

// NewAPI creates the HTTP API of an engine of one model. Tokenizer, chat template and sampling defaults
// come from the checkpoint.
func NewAPI(e Engine, ck *checkpoint.Checkpoint, s ServeConfig, a APIConfig) (*api.Server, error) {
	s.ensureDefaults(&ck.Config)
	m, err := apiModel(e, ck, &s, &a)
	if err != nil {
		return nil, err
	}
	return api.New(a.server(m.Config, &s), e, m.Tokenizer, m.Template)
}

// server adds the settings of the whole server to those of a model.
func (a *APIConfig) server(c api.Config, s *ServeConfig) api.Config {
	c.Keys, c.Audit, c.TLS, c.Strict, c.AllowOrigins, c.Tracer, c.Version, c.Logger = a.Keys, a.Audit, a.TLS, a.Strict,
		a.AllowOrigins, s.Tracer, a.Version, a.Logger
	return c
}

// NewAPI creates the HTTP API of all models of the coordinator. Template and ToolParser of a are those of
// the first; further models have their own in ServeConfig.
func (c *Coordinator) NewAPI(a APIConfig) (*api.Server, error) { return c.engines.newAPI(c, a) }

// NewAPI creates the HTTP API of all models of the cluster, as [Coordinator.NewAPI] does.
func (c *Local) NewAPI(a APIConfig) (*api.Server, error) { return c.newAPI(c, a) }

// newAPI creates the HTTP API of all models; all is the engine whose state and health it shows.
func (e engines) newAPI(all Engine, a APIConfig) (*api.Server, error) {
	if len(e.models) == 1 {
		return NewAPI(all, e.checkpoint, e.serve, a)
	}
	var models []api.Model
	for i, c := range e.models {
		own := a
		if i > 0 {
			own.Template, own.ToolParser = "", ""
		}
		m, err := apiModel(c, c.checkpoint, &c.serve, &own)
		if err != nil {
			return nil, ofModel(len(e.models), &c.serve, err)
		}
		models = append(models, m)
	}
	return api.NewModels(a.server(api.Config{}, &e.serve), all, models)
}

// apiModel returns a model with the settings that its checkpoint and s give.
func apiModel(e Engine, ck *checkpoint.Checkpoint, s *ServeConfig, a *APIConfig) (m api.Model, err error) {
	for _, w := range ck.Config.Warnings {
		s.Logger.Warn("model config", "warning", w)
	}
	tok, err := tokenizer.Load(ck.Dir)
	if err != nil {
		return m, err
	}
	for _, w := range tok.Warnings() {
		s.Logger.Warn("tokenizer", "warning", w)
	}
	cfg := api.Config{Models: s.Names, ModelRoot: ck.Dir, MaxModelLen: s.MaxContext, VocabSize: ck.Config.Vocab, EOSTokens: ck.Config.EOS,
		CacheBytes: e.CacheBytes, Policy: s.Policy, ContextLimit: e.ContextLimit, SystemFingerprint: fingerprint(ck, s)}
	files, err := tokenizer.ReadFiles(ck.Dir)
	if err != nil {
		return m, err
	}
	if cfg.TokenizerConfig, err = files.Info(); err != nil {
		return m, err
	}
	if cfg.Recipe, err = recipeOf(ck, s, tok); err != nil {
		return m, err
	}
	if r := cfg.Recipe; r != nil {
		cfg.SystemFingerprint += "-v" + r.Fingerprint()
		s.Logger.Info("vectors of texts", "pooling", r.Pool, "dimensions", r.Width, "scores", r.Scores, "from", r.Source)
	}
	cfg.ToolParser = cmp.Or(a.ToolParser, s.ToolParser)
	cfg.Card = modelCard(ck, s)
	if err := samplingDefaults(ck.Dir, &cfg); err != nil {
		return m, err
	}
	template, err := chatTemplate(ck.Dir, cmp.Or(a.Template, s.Template))
	if err != nil {
		return m, err
	}
	return api.Model{Config: cfg, Engine: e, Tokenizer: engine.FromTokenizer(tok), Template: template}, nil
}

// recipeOf returns how a model makes vectors; nil: it does not.
func recipeOf(ck *checkpoint.Checkpoint, s *ServeConfig, tok *tokenizer.Tokenizer) (*recipe.Recipe, error) {
	r, err := recipe.Read(ck, recipe.Options{Pooling: s.Pooling, ScoreTokens: s.ScoreTokens, Token: func(text string) (int32, bool) {
		ids := tok.Encode(text, false)
		return append(ids, 0)[0], len(ids) == 1
	}})
	if err != nil {
		return nil, fmt.Errorf("cluster: %s: %w", options.Name("pooling"), err)
	}
	return r, nil
}

// modelCard describes the checkpoint for clients that query its size and architecture.
func modelCard(ck *checkpoint.Checkpoint, s *ServeConfig) ollama.ModelCard {
	c := &ck.Config
	card := ollama.ModelCard{Format: "safetensors", Quantization: strings.ToUpper(s.Weights), Digest: ck.Hash(),
		Architecture: strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(c.Architecture, "ForCausalLM"), "ForConditionalGeneration")),
		Layers:       c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, FFN: c.FFN}
	card.Parameters, card.Bytes = ck.Size()
	files := ck.Files()
	if len(files) > 0 && strings.EqualFold(filepath.Ext(files[0]), ".gguf") {
		card.Format = "gguf"
	}
	for _, path := range files {
		if st, err := os.Stat(path); err == nil && st.ModTime().After(card.Modified) {
			card.Modified = st.ModTime()
		}
	}
	return card
}

// fingerprint identifies everything except the request that determines the bits of an answer.
func fingerprint(ck *checkpoint.Checkpoint, s *ServeConfig) string {
	print := fmt.Sprintf("shoal-%.12s-%s-%s", ck.Hash(), s.Weights, s.KV)
	if tensor.Arithmetic > 1 { // version 1 had no suffix
		print += fmt.Sprintf("-a%d", tensor.Arithmetic)
	}
	if c := ck.Config; c.ByContext() {
		c.Serve(s.MaxContext)
		print += map[bool]string{false: "-short", true: "-long"}[c.Rope.Beyond]
	}
	return print
}

// servedContext returns the served context if the rotations of the model depend on it, and otherwise 0.
func servedContext(c *model.Config, s *ServeConfig) uint32 {
	if !c.ByContext() {
		return 0
	}
	return uint32(s.MaxContext)
}

// Identify fills in the defaults for a checkpoint and returns the model name and the system
// fingerprint of its answers.
func Identify(ck *checkpoint.Checkpoint, s *ServeConfig) (name, print string) {
	s.ensureDefaults(&ck.Config)
	return s.Names[0], fingerprint(ck, s)
}
