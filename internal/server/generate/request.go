package generate

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Prompt is one prompt of a request.
type Prompt struct {
	Ids  []int32
	Text string // as the client gave it; "" for token ids

	context int    // tokens of a fixed context that it begins with
	policy  string // of that
}

// Request is a decoded request, ready to submit.
type Request struct {
	Params
	Head           Head
	Prompts        []Prompt
	Pool           pooling.Method // not None: each prompt ends with a vector instead of an output
	Ignored        []string       // parameters that have no effect
	Continues      bool           // the output continues the prompt's text
	Echo           bool
	PromptLogprobs int // -1: none
	Discard        bool
	NewEncoder     func(r *Run, out *httpserver.Stream) Encoder
	Resume         func(r *Run, out *httpserver.Stream, after int) Resumable // nil: the events have no numbers
	Tools          *Toolset                                                  // of a chat; nil: none
	// text of the prompt with which a forced call begins; "": it begins in the answer
	callHead      string
	turn          *sessionTurn // of a session; nil: none
	thinking      thinking     // of a chat
	KeepsBody     bool         // the body is needed until the end
	rendered      bool         // the prompt was rendered from messages
	StopsInAnswer bool         // stop strings are searched in the text after the thought only
}

// Encoder writes an answer in the form of one protocol: as the events of a stream, or as one
// body. For a body the stream is nil. It belongs to one goroutine.
type Encoder interface {
	Delta(d Delta)        // addition of one engine event to a choice
	KeepAlive()           // nothing was sent for a while
	End()                 // all choices have ended
	Fail(e *apierr.Error) // the answer ends here
	Body() any            // the whole answer, after end
}

// Resumable is an encoder with numbered events, so that a client can resume a stream.
type Resumable interface {
	Encoder
	// EndAs ends the stream with the state in which a response is kept.
	EndAs(k StoredResponse)
}

// Head is the same on a response and on all chunks of a stream.
type Head struct {
	ID                string `json:"id"`
	Object            string `json:"object"`
	Created           int64  `json:"created"`
	Model             string `json:"model"`
	SystemFingerprint string `json:"system_fingerprint,omitempty"`
}

// Usage counts tokens: of each prompt once, of all choices together.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	// Bytes of the caches of all choices at their ends: under their policy, and with every token kept.
	// Left out when unknown.
	KVBytes     int64 `json:"kv_bytes,omitempty"`
	KVBytesFull int64 `json:"kv_bytes_full,omitempty"`
	// Details are left out when no token was in the prefix cache.
	Details *promptDetails `json:"prompt_tokens_details,omitempty"`
	// Completion is left out when nothing was drafted.
	Completion *completionDetails `json:"completion_tokens_details,omitempty"`
	// Figures are sent next to the usage, not in it.
	Figures *Figures `json:"-"`
}

// promptDetails count prompt tokens that came from the prefix cache, for the first choice of each
// prompt.
type promptDetails struct {
	Cached int `json:"cached_tokens"`
}

// completionDetails count tokens that were drafted and tried, of all choices that came to
// their ends: OpenAI's names, and in how many decode steps.
type completionDetails struct {
	Accepted uint64 `json:"accepted_prediction_tokens"`
	Rejected uint64 `json:"rejected_prediction_tokens"`
	Steps    uint64 `json:"draft_steps"`
}

// Generate runs g and answers, as a stream or as a whole.
func (s *Service) Generate(w http.ResponseWriter, r *http.Request, g *Request) {
	e := s.Admit(w, r, g)
	if e == nil {
		e = s.withContext(g)
	}
	if e == nil && g.turn != nil {
		if e = g.turn.begin(r.Context(), w); e == nil {
			defer g.turn.end()
		}
	}
	if e != nil {
		s.HTTP.Fail(w, e, false)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.Config.Limits.RequestTimeout, apierr.ErrRequestTimeout)
	defer cancel()
	run, err := s.start(ctx, r, g)
	if err != nil {
		g.turn.end()
		s.HTTP.Fail(w, apierr.Of(err), false)
		return
	}
	defer func() {
		run.close()
		run.Charge(r)
	}()
	httpserver.ScopeOf(r).Accepted = true
	if g.Stream {
		s.stream(ctx, w, run)
	} else {
		s.collect(ctx, w, run)
	}
}

// NameIgnored sets the header that names parameters without effect.
func (g *Request) NameIgnored(w http.ResponseWriter) {
	names := slices.Concat(g.Ignored, g.noted)
	if names = names[:min(len(names), jsonbody.MaxNamed)]; len(names) > 0 {
		w.Header().Set("X-Ignored-Parameters", strings.Join(names, ", "))
	}
}

// Admit applies the priority and the limits of the request's key, names ignored parameters, and releases
// the body. Call it once for every request that is answered, and Charge after the answer.
func (s *Service) Admit(w http.ResponseWriter, r *http.Request, g *Request) *apierr.Error {
	sc := httpserver.ScopeOf(r)
	if g.adapter != nil {
		sc.Adapter = g.adapter.Name
	}
	if !g.KeepsBody {
		sc.Settle()
	}
	g.NameIgnored(w)
	key := sc.Principal()
	g.priority, g.tenant = key.Order(g.priority), key.Name
	return key.CheckTokens(time.Now())
}

// Charge takes the tokens of the prompts and of the answer so far from the request's key, and records them for the
// access log.
func (r *Run) Charge(req *http.Request) {
	sc, u := httpserver.ScopeOf(req), r.Usage()
	sc.Tokens = httpserver.TokenCount{Prompt: u.PromptTokens, Completion: u.CompletionTokens}
	sc.Principal().Charge(u.TotalTokens, time.Now())
}

// GenerateHandler runs the request that decode returns for the body, and answers with its output.
func (s *Service) GenerateHandler(decode func(context.Context, []byte) (*Request, *apierr.Error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if g, ok := httpserver.DecodeBody(s.HTTP, w, r, decode); ok {
			s.Generate(w, r, g)
		}
	}
}
