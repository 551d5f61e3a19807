package api

import (
	"cmp"
	"context"
	"fmt"
	"github.com/shoal-llm/shoal/internal/randomid"
	"log/slog"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// ServiceConfig says which model a Service serves, and what requests may ask. Limits must be filled.
type ServiceConfig struct {
	Models      []string // names that requests may use
	MaxModelLen int      // tokens of prompt and answer together
	VocabSize   int      // bounds token ids; the tokenizer's when 0
	ToolParser  string   // a toolcall.Family; found by the chat template when empty
	EOSTokens   []int32

	// What requests leave out.
	DefaultTemperature       float64
	DefaultTopP              float64
	DefaultMinP              float64
	DefaultRepetitionPenalty float64
	DefaultTopK              int

	CacheBytes        func(policy string, prompt, output int) (bytes, full int64)
	Strict            bool // parameters that are not known are refused
	Limits            Limits
	KeepAlive         time.Duration // how long a stream may be silent
	SystemFingerprint string
	Logger            *slog.Logger
	Registry          prometheus.Registerer
}

// Service turns requests into sequences of an engine, and their tokens into answers.
type Service struct {
	cfg      ServiceConfig
	http     *HTTP
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
	metrics  *metrics
	started  time.Time

	contexts     contexts
	contextStore atomic.Pointer[ContextStore] // nil: they live in this process
}

// NewService makes a service. tmpl may be nil for a model without a chat template.
func NewService(cfg ServiceConfig, h *HTTP, e Engine, tok Tokenizer, tmpl ChatTemplate) (*Service, error) {
	s := &Service{cfg: cfg, http: h, engine: e, tok: tok, tmpl: tmpl, vocab: cfg.VocabSize, longest: 1, log: cfg.Logger,
		started: time.Now(), grammars: grammar.NewEngine(&grammar.Vocabulary{})}
	s.vocab = cmp.Or(s.vocab, tok.VocabSize())
	for id := range tok.VocabSize() {
		s.longest = max(s.longest, len(tok.TokenBytes(int32(id))))
	}
	if err := s.readTemplate(); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(cfg.Models[0], cfg.MaxModelLen, cfg.Registry)
	return s, nil
}

// encode turns text into tokens.
func (s *Service) encode(ctx context.Context, segments []Segment, special bool, param string) ([]int32, *apiError) {
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
func (s *Service) checkModel(p *params) *apiError {
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
func (s *Service) fit(ids []int32, p *params, def int, param string) *apiError {
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

func (s *Service) newHead(prefix, object, model string) head {
	return head{ID: prefix + randomid.New(), Object: object, Created: time.Now().Unix(), Model: model, SystemFingerprint: s.cfg.SystemFingerprint}
}
