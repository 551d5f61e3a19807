package generate

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/sessions"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// Config of a Service: its model, defaults and limits. Limits must be filled.
type Config struct {
	Models      []string // names that requests may use
	MaxModelLen int      // tokens of prompt and answer together
	VocabSize   int      // bounds token ids; the tokenizer's when 0
	ToolParser  string   // a toolcall.Family; found by the chat template when empty
	EOSTokens   []int32

	// Defaults of parameters.
	DefaultTemperature       float64
	DefaultTopP              float64
	DefaultMinP              float64
	DefaultRepetitionPenalty float64
	DefaultTopK              int

	Recipe            *recipe.Recipe // how the model makes vectors; nil: it does not
	CacheBytes        func(policy string, prompt, output int) (bytes, full int64)
	Policy            string                  // default kv_policy
	ContextLimit      func(policy string) int // most tokens of a sequence under a cache policy; nil: MaxModelLen
	Strict            bool                    // parameters that are not known are refused
	Limits            jsonbody.Limits
	KeepAlive         time.Duration // how long a stream may be silent
	SystemFingerprint string
	Logger            *slog.Logger
	Registry          prometheus.Registerer
}

// Service turns requests into sequences of an engine, and their tokens into answers.
type Service struct {
	Config    Config
	HTTP      *httpserver.Server
	engine    engine.Engine
	Tokenizer engine.Tokenizer
	Template  engine.ChatTemplate // nil: no chat
	grammars  *grammar.Engine     // only checks that a grammar can be enforced: the owners have their own engines
	family    toolcall.Family     // how the model writes calls, in answers to requests with tools
	plain     dialect             // of answers to requests without tools
	tooled    dialect             // of answers to requests with tools
	Thinks    bool                // answers of either may begin with thoughts
	VocabSize int
	longest   int // bytes of the longest token
	Log       *slog.Logger
	metrics   *metrics
	Started   time.Time

	peers []*Service // of all models of the server, with this one

	Contexts     Contexts
	contextStore atomic.Pointer[ContextStore] // nil: they live in this process
	book         *sessionBook                 // of the server
}

// New makes a service. tmpl may be nil for a model without a chat template.
func New(cfg Config, h *httpserver.Server, e engine.Engine, tok engine.Tokenizer, tmpl engine.ChatTemplate) (*Service, error) {
	s := &Service{Config: cfg, HTTP: h, engine: e, Tokenizer: tok, Template: tmpl, VocabSize: cfg.VocabSize, longest: 1, Log: cfg.Logger,
		Started: time.Now(), book: new(sessionBook), grammars: grammar.NewEngine(&grammar.Vocabulary{})}
	s.VocabSize = cmp.Or(s.VocabSize, tok.VocabSize())
	for id := range tok.VocabSize() {
		s.longest = max(s.longest, len(tok.TokenBytes(int32(id))))
	}
	if err := s.readTemplate(); err != nil {
		return nil, err
	}
	s.peers = []*Service{s}
	s.book.Store(sessions.NewBook(nil, nil))
	s.metrics = newMetrics(cfg.Models[0], cfg.MaxModelLen, cfg.Registry)
	return s, nil
}

// Close releases all fixed contexts, so that the engine can free their caches.
func (s *Service) Close() { s.Contexts.dropAll() }

// Encode turns text into tokens.
func (s *Service) Encode(ctx context.Context, segments []engine.Segment, special bool, param string) ([]int32, *apierr.Error) {
	size := 0
	for _, seg := range segments {
		size += len(seg.Text)
	}
	if e := s.farTooLong(size, param); e != nil {
		return nil, e
	}
	ids, err := s.Tokenizer.Encode(ctx, segments, special)
	if err != nil {
		return nil, apierr.InvalidCode(param, "not_encodable", "'%s' cannot be turned into tokens: %v.", param, err)
	}
	// An added token may be beyond the embedding. A node would refuse the step.
	if i := slices.IndexFunc(ids, func(id int32) bool { return int(id) >= s.VocabSize }); i >= 0 {
		return nil, apierr.InvalidCode(param, "not_encodable", "'%s' has the token %q (%d), and the model has weights for tokens 0 to %d only.",
			param, s.Tokenizer.Token(ids[i]), ids[i], s.VocabSize-1)
	}
	return ids, nil
}

// farTooLong refuses a text of this number of bytes without encoding it; 4 is slack for normalisation.
func (s *Service) farTooLong(size int, param string) *apierr.Error {
	if least := size / s.longest / 4; least > s.Config.Limits.PromptTokens {
		return apierr.InvalidCode(param, "context_length_exceeded", "%s",
			apierr.ErrTooLong{Limit: s.Config.MaxModelLen, Prompt: least, AtLeast: true}.Error())
	}
	return nil
}

// CheckModel resolves the model name of a request.
func (s *Service) CheckModel(p *Params) *apierr.Error {
	if p.Model == "" {
		p.Model = s.Config.Models[0]
		return nil
	}
	if slices.Contains(s.Config.Models, p.Model) {
		return nil
	}
	if a, ok := s.AdapterNamed(p.Model); ok {
		p.adapter = &a
		return nil
	}
	var names []string
	for _, x := range s.peers {
		names = append(names, "`"+x.Config.Models[0]+"`")
	}
	return &apierr.Error{Status: http.StatusNotFound, Type: apierr.TypeInvalid, Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("The model `%s` does not exist; this server has %s.", p.Model, strings.Join(names, ", "))}
}

// Serves reports whether a name is one of the model, or of one of its LoRA adapters.
func (s *Service) Serves(name string) bool {
	_, ok := s.AdapterNamed(name)
	return ok || slices.Contains(s.Config.Models, name)
}

// Introduce makes the services of the models of one server known to each other.
func Introduce(all []*Service) {
	for _, s := range all {
		s.peers, s.book = all, all[0].book
	}
}

// Fit checks the prompt against the context, and lowers max_tokens to the room that is left. def
// is the default of max_tokens; -1: the rest of the context.
func (s *Service) Fit(ids []int32, p *Params, def int, param string) *apierr.Error {
	limit := s.longestUnder(p.policy)
	if most := s.Config.Limits.PromptTokens; len(ids) > most && most < min(limit, s.Config.MaxModelLen) {
		limit = most // a stricter limit reads the same to a client
	}
	return s.fit(len(ids), limit, p, def, param)
}

// longestUnder returns the most tokens of a sequence under a cache policy.
func (s *Service) longestUnder(policy string) int {
	if s.Config.ContextLimit == nil {
		return s.Config.MaxModelLen
	}
	return s.Config.ContextLimit(policy)
}

// fit is Fit for a prompt of n tokens, and a sequence of at most limit.
func (s *Service) fit(n, limit int, p *Params, def int, param string) *apierr.Error {
	most, hint := s.Config.MaxModelLen, ""
	if s.Config.ContextLimit != nil {
		hint = " Cache policies that evict with positions=cache have no such limit: set 'kv_policy' to streaming:positions=cache."
	}
	want, requested := p.MaxTokens, p.MaxTokens
	if want < 0 {
		want = def
	}
	if want < 0 || requested == math.MaxInt32 {
		want, requested, p.open = min(limit, most), 0, true
	}
	if n > limit || n == limit && want > 0 {
		return apierr.InvalidCode(param, "context_length_exceeded", "%s",
			apierr.ErrTooLong{Limit: limit, Prompt: n, Completion: max(requested, 0)}.Error()+hint)
	}
	if p.Sampling.MinTokens > want {
		return apierr.Invalid("min_tokens", "'min_tokens' (%d) is more than the %d tokens that may be generated.", p.Sampling.MinTokens, want)
	}
	p.MaxTokens = min(want, limit-n)
	p.Sampling.MinTokens = min(p.Sampling.MinTokens, p.MaxTokens)
	return nil
}

func (s *Service) NewHead(prefix, object, model string) Head {
	return Head{ID: prefix + strings.ToLower(rand.Text()), Object: object, Created: time.Now().Unix(),
		Model: model, SystemFingerprint: s.fingerprint(model)}
}
