package api

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/lograte"
	"github.com/shoal-llm/shoal/internal/sys/openfiles"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// Config of a Server. Zero fields take their defaults unless stated.
type Config struct {
	// Models are the names clients may use; the first is reported in
	// responses when a request names none. At least one.
	Models []string
	// ModelRoot is where the weights come from, reported as "root" by
	// /v1/models; the first name when empty.
	ModelRoot string
	// Card describes the model to Ollama's clients.
	Card ModelCard
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

	// CacheBytes tells what the cache of a sequence of prompt and output tokens
	// takes under a policy ("" for the server's), and what a full one would;
	// reported in usage. May be nil.
	CacheBytes func(policy string, prompt, output int) (bytes, full int64)

	// Keys, when there are any, guard every route but /health and /ready.
	// Only their hashes are kept.
	Keys []Key
	// Audit gets a record of every request that may change something or was refused
	// for its key: who, what, when, with which outcome. nil: none.
	Audit *slog.Logger
	// TLS, when set, is what Serve speaks.
	TLS *tls.Config

	// AllowOrigins are the origins (scheme://host:port, or *) whose web pages may use the
	// API, besides its own.
	AllowOrigins []string

	// Strict refuses parameters that are not known; else they are named in a header.
	Strict bool

	Limits Limits
	// KeepAlive is how long a stream stays silent before a comment is sent; 10 s.
	KeepAlive time.Duration
	// Grace is how long running requests may take after Serve's context ends; 30 s.
	Grace time.Duration

	// TokenizerConfig is the checkpoint's tokenizer_config.json, for /tokenizer_info.
	TokenizerConfig json.RawMessage
	// SystemFingerprint names what decides the bits of an answer besides the
	// request: model and quantisation. Left out of responses when empty.
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
	or(&c.DefaultTopP, 1)
	or(&c.DefaultRepetitionPenalty, 1)
	c.Limits.fill()
	or(&c.Limits.PromptTokens, c.MaxModelLen)
	or(&c.ModelRoot, c.Models[0])
	or(&c.Card.Architecture, "unknown")
	or(&c.KeepAlive, 10*time.Second)
	or(&c.Grace, 30*time.Second)
	or(&c.Version, "dev")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Server is the HTTP front door of one engine.
type Server struct {
	cfg      Config
	engine   Engine
	tok      Tokenizer
	tmpl     ChatTemplate    // nil: no chat
	grammars *grammar.Engine // which only says whether a grammar can be enforced: the owners have their own
	family   toolcall.Family // how the model writes calls, in answers to requests with tools
	plain    dialect         // of answers to requests without tools
	tooled   dialect         // of answers to requests with tools
	thinks   bool            // answers of either may begin with thoughts
	vocab    int
	longest  int // bytes of the longest token
	log      *slog.Logger
	keys     atomic.Pointer[keyring]
	audit    *audit
	refused  lograte.Limiter // lines of the access log
	working  atomic.Int64    // requests that their handlers have, but for brief ones
	bodies   *bodyBudget
	routes   []route
	metrics  *metrics
	started  time.Time
	info     map[string]any // /tokenizer_info
	draining atomic.Bool

	responses atomic.Pointer[ResponseStore] // nil: they are not kept
	stopping  chan struct{}                 // closed when Serve begins to drain
	contexts  contexts

	contextStore atomic.Pointer[ContextStore] // nil: they live in this process
}

// New makes a server. tmpl may be nil for a model without a chat template.
func New(cfg Config, e Engine, tok Tokenizer, tmpl ChatTemplate) (*Server, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if e == nil || tok == nil {
		return nil, errors.New("api: New needs an engine and a tokenizer")
	}
	s := &Server{cfg: cfg, engine: e, tok: tok, tmpl: tmpl, vocab: cfg.VocabSize, log: cfg.Logger, started: time.Now(), stopping: make(chan struct{}), grammars: grammar.NewEngine(&grammar.Vocabulary{})}
	or(&s.vocab, tok.VocabSize())
	s.longest = 1
	for id := range s.tok.VocabSize() {
		s.longest = max(s.longest, len(tok.TokenBytes(int32(id))))
	}
	s.bodies = &bodyBudget{whole: cfg.Limits.BodiesBytes, perKey: cfg.Limits.KeyBodiesBytes, byKey: map[string]int64{}}
	s.keys.Store(&keyring{})
	err := s.SetKeys(cfg.Keys)
	if err != nil {
		return nil, err
	}
	s.cfg.Keys = nil
	s.audit = &audit{log: cfg.Audit}
	if s.info, err = tokenizerInfo(cfg); err != nil {
		return nil, err
	}
	if err := s.readTemplate(); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(cfg.Models[0], cfg.MaxModelLen, e)
	s.routes = s.ownRoutes()
	return s, nil
}

// Registerer takes the metrics of other packages; they appear on /metrics.
func (s *Server) Registerer() prometheus.Registerer { return s.metrics.registry }

// Stopping is closed when Serve begins to drain: streams that a client can take
// up again later should end now.
func (s *Server) Stopping() <-chan struct{} { return s.stopping }

// Serve answers on l until ctx ends. Then it refuses new work with 503, lets running
// requests finish for Config.Grace, ends the rest with an error event, and
// returns. It closes l. It must be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(nil)
	lim := s.cfg.Limits
	files, open := openfiles.Count()
	door := newConnections(l, connectionLimit(lim.Connections, files, open))
	srv := &http.Server{
		Handler:           s.Handler(),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       door.context,
		ConnState:         door.state,
		ReadHeaderTimeout: lim.ReadHeaderTimeout,
		IdleTimeout:       lim.IdleTimeout,
		MaxHeaderBytes:    lim.HeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	var at net.Listener = door
	if s.cfg.TLS != nil {
		at = tls.NewListener(door, s.cfg.TLS)
	}
	go func() { failed <- srv.Serve(at) }()
	select {
	case err := <-failed:
		return fmt.Errorf("api: serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	close(s.stopping)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Grace)
	defer cancel()
	s.awaitWork(grace)
	err := srv.Shutdown(grace)
	if err != nil { // some requests still run: tell them, and give them a moment to say so
		kill(errShutdown)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err = srv.Shutdown(last)
		_ = srv.Close()
	}
	if e := <-failed; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	if err != nil {
		return fmt.Errorf("api: drain: connections cut after %v: %w", s.cfg.Grace, err)
	}
	return nil
}

// awaitWork returns when every request has its answer. Until then the server still
// listens: new work gets a 503 that says why, not a refused connection.
func (s *Server) awaitWork(ctx context.Context) {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for s.working.Load() > 0 {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// encode turns text into tokens.
func (s *Server) encode(ctx context.Context, segments []Segment, special bool, param string) ([]int32, *apiError) {
	size := 0
	for _, seg := range segments {
		size += len(seg.Text)
	}
	// Far too long is seen without encoding it; 4 is slack for normalisation.
	if least := size / s.longest / 4; least > s.cfg.Limits.PromptTokens {
		return nil, invalidCode(param, "context_length_exceeded", "%s", ErrTooLong{Limit: s.cfg.MaxModelLen, Prompt: least, AtLeast: true}.Error())
	}
	ids, err := s.tok.Encode(ctx, segments, special)
	if err != nil {
		return nil, invalidCode(param, "not_encodable", "'%s' cannot be turned into tokens: %v.", param, err)
	}
	return ids, nil
}

// checkModel resolves the model name of a request.
func (s *Server) checkModel(p *params) *apiError {
	if p.model == "" {
		p.model = s.cfg.Models[0]
		return nil
	}
	for _, m := range s.cfg.Models {
		if m == p.model {
			return nil
		}
	}
	return &apiError{status: http.StatusNotFound, typ: typeInvalid, param: "model", code: "model_not_found",
		message: fmt.Sprintf("The model `%s` does not exist; this server has `%s`.", p.model, s.cfg.Models[0])}
}

// fit checks the prompt against the context and settles max_tokens, which gives way to it;
// def is its default, -1 for the rest of the context.
func (s *Server) fit(ids []int32, p *params, def int, param string) *apiError {
	limit, n := s.cfg.MaxModelLen, len(ids)
	if n > s.cfg.Limits.PromptTokens && s.cfg.Limits.PromptTokens < limit {
		limit = s.cfg.Limits.PromptTokens // a stricter limit reads the same to a client
	}
	want, asked := p.maxTokens, p.maxTokens
	if want < 0 {
		want = def
	}
	if want < 0 || asked == math.MaxInt32 {
		want, asked = limit, 0
	}
	if n > limit || n == limit && want > 0 {
		return invalidCode(param, "context_length_exceeded", "%s", ErrTooLong{Limit: limit, Prompt: n, Completion: max(asked, 0)}.Error())
	}
	if p.sampling.MinTokens > want {
		return invalid("min_tokens", "'min_tokens' (%d) is more than the %d tokens that may be generated.", p.sampling.MinTokens, want)
	}
	p.maxTokens = min(want, limit-n)
	p.sampling.MinTokens = min(p.sampling.MinTokens, p.maxTokens)
	return nil
}

func (s *Server) newHead(prefix, object, model string) head {
	return head{ID: prefix + newID(), Object: object, Created: time.Now().Unix(), Model: model, SystemFingerprint: s.cfg.SystemFingerprint}
}

func unixNow() *int64 {
	t := time.Now().Unix()
	return &t
}

// newID is 128 random bits, spelled without ambiguity of case.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}
