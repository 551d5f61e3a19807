package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/server/admin"
	"github.com/shoal-llm/shoal/internal/server/anthropic"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/ollama"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/vectors"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// Config of a Server. Zero fields take their defaults unless stated.
type Config struct {
	// Models are the names clients may use; the first is reported in
	// responses when a request names none. At least one.
	Models []string
	// ModelRoot is the source of the weights, reported as "root" by
	// /v1/models; the first name when empty.
	ModelRoot string
	// Card describes the model to Ollama's clients.
	Card ollama.ModelCard
	// MaxModelLen is the context in tokens, prompt and completion together.
	// Required.
	MaxModelLen int
	// VocabSize bounds token ids from clients; the tokenizer's when 0.
	VocabSize int
	// ToolParser is how the model writes calls of functions: a toolcall.Family; found by
	// the chat template when empty.
	ToolParser string
	// EOSTokens are the model's own stop tokens; min_tokens holds them back.
	EOSTokens []int32

	// Sampling defaults, from the model's generation_config. A nil
	// temperature is OpenAI's 1; 0 is greedy. The others: 0 is "off".
	DefaultTemperature       *float64
	DefaultTopP              float64
	DefaultMinP              float64
	DefaultRepetitionPenalty float64
	DefaultTopK              int

	// Recipe is how the model makes vectors; nil: it does not.
	Recipe *recipe.Recipe

	// CacheBytes returns the bytes of the cache of a sequence with these prompt and output
	// tokens under a policy ("" for the server's), and of a full cache; reported in usage. May be nil.
	CacheBytes func(policy string, prompt, output int) (bytes, full int64)
	// Policy is the server's cache policy; a session records it.
	Policy string
	// ContextLimit returns the most tokens of prompt and completion under a cache policy; "" is the
	// server's. It may exceed MaxModelLen. nil: MaxModelLen.
	ContextLimit func(policy string) int

	// Keys, when there are any, guard every route but /health and /ready.
	// Only their hashes are kept.
	Keys []httpserver.Key
	// Audit gets a record of every request that may change state or was refused for its key: key,
	// route, time, outcome. nil: none.
	Audit *slog.Logger
	// TLS, unless nil, makes Serve use TLS.
	TLS *tls.Config

	// AllowOrigins are the origins (scheme://host:port, or *) whose web pages may use the
	// API, besides its own.
	AllowOrigins []string

	// Strict refuses parameters that are not known; else they are named in a header.
	Strict bool

	Limits jsonbody.Limits
	// KeepAlive is how long a stream stays silent before a comment is sent; 10 s.
	KeepAlive time.Duration
	// Grace is how long running requests may take after Serve's context ends; 30 s.
	Grace time.Duration

	// TokenizerConfig is the checkpoint's tokenizer_config.json, for /tokenizer_info.
	TokenizerConfig json.RawMessage
	// SystemFingerprint identifies the model and its quantization. With the request these determine the
	// bits of an answer. Left out of responses when empty.
	SystemFingerprint string
	Version           string          // "dev" when empty
	Tracer            *tracing.Tracer // nil: none
	Logger            *slog.Logger
}

func (c *Config) fill() error {
	if len(c.Models) == 0 || c.Models[0] == "" {
		return errors.New("api: Config.Models is empty: name at least one model")
	}
	if c.MaxModelLen < 2 {
		return fmt.Errorf("api: Config.MaxModelLen is %d: the context must hold at least 2 tokens", c.MaxModelLen)
	}
	if t := c.DefaultTemperature; t == nil {
		one := 1.0
		c.DefaultTemperature = &one
	} else if !(*t >= 0 && *t <= 100) {
		return fmt.Errorf("api: Config.DefaultTemperature is %v: it must be 0 to 100", *t)
	}
	c.DefaultTopP = cmp.Or(c.DefaultTopP, 1)
	c.DefaultRepetitionPenalty = cmp.Or(c.DefaultRepetitionPenalty, 1)
	c.Limits.Fill()
	c.Limits.PromptTokens = cmp.Or(c.Limits.PromptTokens, c.MaxModelLen)
	c.ModelRoot = cmp.Or(c.ModelRoot, c.Models[0])
	c.Card.Architecture = cmp.Or(c.Card.Architecture, "unknown")
	c.KeepAlive = cmp.Or(c.KeepAlive, 10*time.Second)
	c.Grace = cmp.Or(c.Grace, 30*time.Second)
	c.Version = cmp.Or(c.Version, "dev")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Server answers the protocols of the models of a cluster over HTTP.
type Server struct {
	*httpserver.Server
	members   []*member // one for each model
	limits    jsonbody.Limits
	keepAlive time.Duration
	registry  *prometheus.Registry

	contextStop func() // ends the goroutine that asks the store for contexts; nil: there is none
}

// New makes a server of one model. tmpl may be nil for a model without a chat template.
func New(cfg Config, e engine.Engine, tok engine.Tokenizer, tmpl engine.ChatTemplate) (*Server, error) {
	return NewModels(cfg, e, []Model{{cfg, e, tok, tmpl}})
}

// NewModels makes a server of several models. cfg has the settings of the whole server, e is the engine
// of all models.
func NewModels(cfg Config, e engine.Engine, models []Model) (*Server, error) {
	cfg.Models, cfg.MaxModelLen, cfg.DefaultTemperature = models[0].Models, models[0].MaxModelLen, models[0].DefaultTemperature
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	adm := admin.New(e, cfg.Models[0], cfg.Version, cfg.Logger, registry)
	h, err := httpserver.New(httpserver.Config{Keys: cfg.Keys, Audit: cfg.Audit, TLS: cfg.TLS,
		AllowOrigins: cfg.AllowOrigins, Limits: cfg.Limits,
		Grace: cfg.Grace, Tracer: cfg.Tracer, Logger: cfg.Logger, Observe: adm.Observe})
	if err != nil {
		return nil, err
	}
	s := &Server{Server: h, limits: cfg.Limits, keepAlive: cfg.KeepAlive, registry: registry}
	for _, m := range models {
		if err := s.add(&cfg, m); err != nil {
			return nil, err
		}
	}
	introduce(s.members)
	registry.MustRegister(s.members[0].service.SessionMetrics()...)
	return s, errors.Join(adm.AddRoutes(h), s.addRoutes())
}

// add adds a model.
func (s *Server) add(server *Config, m Model) error {
	if m.Engine == nil || m.Tokenizer == nil {
		return errors.New("api: New needs an engine and a tokenizer")
	}
	cfg := &m.Config
	if len(s.members) > 0 || cfg.Limits.PromptTokens == 0 { // the first may be the server's own Config
		cfg.Limits = server.Limits
		cfg.Limits.PromptTokens = 0
	}
	cfg.Strict, cfg.KeepAlive, cfg.Logger = server.Strict, server.KeepAlive, server.Logger
	if err := cfg.fill(); err != nil {
		return err
	}
	info, err := openai.TokenizerInfo(cfg.TokenizerConfig, cfg.MaxModelLen, m.Template)
	if err != nil {
		return err
	}
	service, err := generate.New(generate.Config{Models: cfg.Models, MaxModelLen: cfg.MaxModelLen,
		VocabSize: cfg.VocabSize, ToolParser: cfg.ToolParser,
		EOSTokens: cfg.EOSTokens, DefaultTemperature: *cfg.DefaultTemperature, DefaultTopP: cfg.DefaultTopP, DefaultMinP: cfg.DefaultMinP,
		DefaultRepetitionPenalty: cfg.DefaultRepetitionPenalty, DefaultTopK: cfg.DefaultTopK, Recipe: cfg.Recipe, CacheBytes: cfg.CacheBytes,
		Policy: cfg.Policy, ContextLimit: cfg.ContextLimit, Strict: cfg.Strict,
		Limits: cfg.Limits, KeepAlive: cfg.KeepAlive, SystemFingerprint: cfg.SystemFingerprint, Logger: cfg.Logger, Registry: s.registry},
		s.Server, m.Engine, m.Tokenizer, m.Template)
	if err != nil {
		return err
	}
	v := vectors.New(service)
	s.members = append(s.members,
		&member{service, openai.New(service, v, cfg.ModelRoot, info), anthropic.New(service), ollama.New(service, cfg.Card, v), v})
	return nil
}

// introduce makes the models of a server known to each other.
func introduce(all []*member) {
	var services []*generate.Service
	var apis []*openai.API
	var others []*ollama.API
	for _, m := range all {
		services, apis, others = append(services, m.service), append(apis, m.openai), append(others, m.ollama)
	}
	generate.Introduce(services)
	openai.Introduce(apis)
	ollama.Introduce(others)
}

// Serve answers on l until ctx ends and running requests are done; see [httpserver.Server.Serve]. It must be
// called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	for _, m := range s.members {
		defer m.service.Close()
	}
	return s.Server.Serve(ctx, l)
}

// Registerer takes the metrics of other packages; they appear on /metrics.
func (s *Server) Registerer() prometheus.Registerer { return s.registry }

// Limits are those in force, for routes of other packages.
func (s *Server) Limits() jsonbody.Limits { return s.limits }

// KeepAlive returns how long a stream may be silent.
func (s *Server) KeepAlive() time.Duration { return s.keepAlive }

// Charge takes the tokens that a task may use from the key of the request that brings it.
func (s *Server) Charge(r *http.Request, t *generate.Task) error { return t.Charge(r) }
