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
	shape          shape
	tools          *toolset // of a chat; nil: none
	thinking       thinking // of a chat
	response       *responseRequest
	frames         func() framer // of a protocol that is not OpenAI's chunks; nil: it is
	lines          bool          // a stream is a JSON object a line, not server-sent events
	stopsInAnswer  bool          // stop strings are searched in what follows the thought
}

// framer puts deltas into another protocol's words: the events of a stream, and the whole
// that they add up to. Where nobody reads the stream, out is nil.
type framer interface {
	delta(out *sse, r *run, d delta)
	alive(out *sse, r *run) // nothing was sent for a while
	end(out *sse, r *run)
	failed(out *sse, r *run, e *apiError)
	whole(r *run) any // after the end
}

// head is the same on a response and on all chunks of a stream.
type head struct {
	ID                string `json:"id"`
	Object            string `json:"object"`
	Created           int64  `json:"created"`
	Model             string `json:"model"`
	SystemFingerprint string `json:"system_fingerprint,omitempty"`
}

// shape puts deltas into the words of one endpoint.
type shape interface {
	chunk(d delta) chunkBody
	whole(choices []delta, u usage) any
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
	figures *figures
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
func (s *Server) generate(w http.ResponseWriter, r *http.Request, g *generation) {
	sc := scopeOf(r)
	if g.response == nil || !g.response.echo.Store { // else the body is kept until the end
		sc.settle()
	}
	e := s.admit(w, sc.who(), g)
	if e == nil {
		e = s.withContext(g)
	}
	if e != nil {
		s.writeError(w, e, false)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.cfg.Limits.RequestTimeout, errRequestTimeout)
	defer cancel()
	run, err := s.start(ctx, r, g)
	if err != nil {
		s.writeError(w, asAPIError(err), false)
		return
	}
	defer func() {
		run.close()
		sc.tokens = run.usage()
		sc.who().spend(sc.tokens.TotalTokens, time.Now())
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
func (s *Server) admit(w http.ResponseWriter, h *holder, g *generation) *apiError {
	g.nameIgnored(w)
	g.priority, g.tenant = h.order(g.priority), h.Name
	return h.mayAsk(time.Now())
}
