package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
)

// prompt is one prompt of a request.
type prompt struct {
	ids  []int32
	text string // as the client gave it; "" for token ids

	context int    // tokens of a fixed context that it begins with
	policy  string // of that
}

// generation is a decoded request, ready to submit.
type generation struct {
	params
	head           head
	prompts        []prompt
	ignored        []string // parameters that have no effect
	continues      bool     // the output goes on with the prompt's text
	echo           bool
	promptLogprobs int // -1: none
	discard        bool
	newEncoder     func(r *run, out *Stream) encoder
	resume         func(r *run, out *Stream, after int) resumable // nil: the events have no numbers
	tools          *toolset                                       // of a chat; nil: none
	thinking       thinking                                       // of a chat
	keepsBody      bool                                           // the body is needed until the end
	rendered       bool                                           // the prompt was rendered from messages
	stopsInAnswer  bool                                           // stop strings are searched in what follows the thought
}

// encoder writes an answer in the words of one protocol: as the events of a stream, or as one
// body. For a body the stream is nil. It belongs to one goroutine.
type encoder interface {
	delta(d delta)    // what an event of the engine adds to a choice
	keepAlive()       // nothing was sent for a while
	end()             // all choices have ended
	fail(e *apiError) // the answer ends here
	body() any        // the whole answer, after end
}

// resumable is an encoder whose events have numbers, so that a client can take up a stream.
type resumable interface {
	encoder
	// endAs ends the stream with the state in which a response is kept.
	endAs(k KeptResponse)
}

// head is the same on a response and on all chunks of a stream.
type head struct {
	ID                string `json:"id"`
	Object            string `json:"object"`
	Created           int64  `json:"created"`
	Model             string `json:"model"`
	SystemFingerprint string `json:"system_fingerprint,omitempty"`
}

// usage counts tokens: of each prompt once, of all choices together.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	// Cache of all choices at their ends, in bytes: under their policy, and what
	// it would be had every token been kept. Left out when not known.
	KVBytes     int64 `json:"kv_bytes,omitempty"`
	KVBytesFull int64 `json:"kv_bytes_full,omitempty"`
	// Details are left out when no token was in the prefix cache.
	Details *promptDetails `json:"prompt_tokens_details,omitempty"`
	// Completion is left out when nothing was drafted.
	Completion *completionDetails `json:"completion_tokens_details,omitempty"`
	// figures stand beside the usage, not in it.
	figures *figures `json:"-"`
}

// promptDetails count prompt tokens that did not have to be read: of each prompt those of
// its first choice.
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

// generate runs g and answers, as a stream or as a whole.
func (s *Service) generate(w http.ResponseWriter, r *http.Request, g *generation) {
	sc := scopeOf(r)
	if !g.keepsBody {
		sc.settle()
	}
	e := s.admit(w, sc.principal(), g)
	if e == nil {
		e = s.withContext(g)
	}
	if e != nil {
		s.http.writeError(w, e, false)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.cfg.Limits.RequestTimeout, errRequestTimeout)
	defer cancel()
	run, err := s.start(ctx, r, g)
	if err != nil {
		s.http.writeError(w, asAPIError(err), false)
		return
	}
	defer func() {
		run.close()
		u := run.usage()
		sc.tokens = TokenCount{u.PromptTokens, u.CompletionTokens}
		sc.principal().charge(u.TotalTokens, time.Now())
	}()
	sc.accepted = true
	if g.stream {
		s.stream(ctx, w, run)
	} else {
		s.collect(ctx, w, run)
	}
}

// nameIgnored tells a client what of its request has no effect.
func (g *generation) nameIgnored(w http.ResponseWriter) {
	names := slices.Concat(g.ignored, g.noted)
	if names = names[:min(len(names), maxNamed)]; len(names) > 0 {
		w.Header().Set("X-Ignored-Parameters", strings.Join(names, ", "))
	}
}

// admit applies what the key of a request allows, and says what of it has no effect.
func (s *Service) admit(w http.ResponseWriter, key *principal, g *generation) *apiError {
	g.nameIgnored(w)
	g.priority, g.tenant = key.order(g.priority), key.Name
	return key.checkTokens(time.Now())
}

// generateHandler answers a route with the generation that decode makes of the body.
func (s *Service) generateHandler(decode func(context.Context, []byte) (*generation, *apiError)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if g, ok := decodeBody(s.http, w, r, decode); ok {
			s.generate(w, r, g)
		}
	}
}
