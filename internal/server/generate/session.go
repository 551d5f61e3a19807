package generate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// A request with a session has only the new part of a conversation. The tokens of the turns before are in
// the book of sessions. Each turn is recorded before the client gets the end of its answer.

// sessionBook is shared by all models of a server. It holds nil while the store of sessions is away.
type sessionBook struct{ atomic.Pointer[sessions.Book] }

// SetSessionBook sets the sessions of the server; nil: their store is away.
func (s *Service) SetSessionBook(b *sessions.Book) { s.book.Store(b) }

// Sessions returns the sessions of the server.
func (s *Service) Sessions() (*sessions.Book, *apierr.Error) {
	if b := s.book.Load(); b != nil {
		return b, nil
	}
	return nil, apierr.Unavailable("jobs_unavailable", "The store of sessions is unavailable.", time.Second)
}

// sessionParams are the parameters of a turn.
type sessionParams struct {
	Session string
	ttl     int64 // seconds; 0: as before
	turns   int   // that the session must have; -1: any
}

func (p *sessionParams) parse(f *jsonbody.Object) {
	p.turns = -1
	f.Text("session", &p.Session)
	if f.Integer("session_ttl", &p.ttl) && p.Session == "" {
		f.Fail(apierr.Invalid("session_ttl", "'session_ttl' needs 'session'."))
	}
	var n int64
	if f.Integer("session_turns", &n) {
		if p.turns = int(n); p.Session == "" {
			f.Fail(apierr.Invalid("session_turns", "'session_turns' needs 'session'."))
		}
	}
	if p.Session != "" && !sessions.ValidName(p.Session) {
		f.Fail(apierr.Invalid("session", "'session' must be 1 to %d letters, digits, dots, dashes or underscores, and neither %q nor %q.",
			sessions.MaxName, ".", ".."))
	}
}

// sessionTurn is the next turn of a session.
type sessionTurn struct {
	book   *sessions.Book
	id     string
	tenant string
	name   string
	before sessions.State // Turns is 0 for a new session
	turn   sessions.Turn
	answer Delta
	text   strings.Builder
	done   bool // the answer is complete
	begun  bool // the session is reserved
}

// OpenSession looks up the session that a request names, and checks that the request fits it. chat is the
// hash of the template and the tools; "" for a completion.
func (s *Service) OpenSession(ctx context.Context, g *Request, chat string) *apierr.Error {
	if g.Session == "" {
		return nil
	}
	for _, x := range []struct {
		name string
		set  bool
	}{{"n", g.N > 1}, {"best_of", g.Keep > 0}, {"echo", g.Echo}, {"prompt_logprobs", g.PromptLogprobs >= 0},
		{"truncate_prompt_tokens", g.truncate != 0}, {"context", g.Context != ""}} {
		if x.set {
			return apierr.InvalidCode(x.name, "unsupported_parameter", "'%s' is not supported with 'session'.", x.name)
		}
	}
	book, e := s.Sessions()
	if e != nil {
		return e
	}
	tenant := httpserver.KeyName(ctx)
	t := &sessionTurn{book: book, id: sessions.ID(tenant, g.Session), tenant: tenant, name: g.Session}
	var err error
	if t.before, err = book.State(ctx, tenant, g.Session); err != nil && !errors.Is(err, sessions.ErrNotFound) {
		return SessionProblem(err, g.Session)
	}
	if g.turns >= 0 && g.turns != t.before.Turns {
		if t.before.Turns == 0 {
			return SessionProblem(sessions.ErrNotFound, g.Session)
		}
		return sessionConflict("session_turns", "session_moved", "Session %s has %d turns, not %d: read it with GET /v1/sessions/%s.",
			quoted(g.Session), t.before.Turns, g.turns, g.Session)
	}
	if g.policy == "" {
		g.policy = cmp.Or(t.before.Policy, s.Config.Policy)
	}
	head := sessions.Head{Tenant: tenant, Name: g.Session, Model: g.Model, Fingerprint: s.fingerprint(g.Model), Policy: g.policy, Chat: chat}
	ttl := int64(sessions.DefaultTTL / time.Second)
	if was := &t.before; was.Turns == 0 {
		t.turn.Head = &head
	} else {
		ttl = was.TTL
		differs := func(param, what string) *apierr.Error {
			return sessionConflict(param, "session_mismatch", "Session %s was begun with %s: send the same, or begin another session.",
				quoted(g.Session), what)
		}
		switch {
		case was.Fingerprint != head.Fingerprint || was.Model != head.Model && was.Fingerprint == "":
			return differs("model", "another model, or other settings of it, as "+quoted(was.Model))
		case was.Policy != head.Policy:
			return differs("kv_policy", "kv_policy "+was.Policy)
		case was.Chat == "" && chat != "":
			return differs("messages", "/v1/completions")
		case was.Chat != "" && chat == "":
			return differs("prompt", "the messages of a chat")
		case was.Chat != chat:
			return differs("tools", "another chat template or other 'tools'")
		}
	}
	t.turn.TTL = cmp.Or(g.ttl, ttl)
	g.turn = t
	if t.before.Turns > 0 && g.SpecialTokens == nil {
		g.SpecialTokens = new(bool) // a later turn gets no BOS
	}
	return nil
}

// extends reports whether the session of a request has turns.
func (g *Request) extends() bool { return g.turn != nil && g.turn.before.Turns > 0 }

// openChat opens the session of a chat.
func (s *Service) openChat(ctx context.Context, g *Request, c *Chat) *apierr.Error {
	if g.Session == "" {
		return nil
	}
	if c.ContinueFinal || !c.AddGenerationPrompt {
		return apierr.InvalidCode("add_generation_prompt", "unsupported_parameter",
			"A turn of a session ends with the answer of the assistant: leave 'add_generation_prompt' and 'continue_final_message' out.")
	}
	shown := c.Conversation
	shown.Messages = nil
	s.showTools(&shown, g.Tools)
	h := sha256.New()
	for _, part := range [][]byte{[]byte(s.templateSource()), shown.Tools} {
		h.Write([]byte(strconv.Itoa(len(part)) + " "))
		h.Write(part)
	}
	return s.OpenSession(ctx, g, hex.EncodeToString(h.Sum(nil)[:16]))
}

func (s *Service) templateSource() (text string) {
	if t, ok := s.Template.(interface{ Source() string }); ok {
		text = t.Source()
	}
	if t, ok := s.Template.(interface{ ToolSource() string }); ok {
		text += "\x00" + t.ToolSource()
	}
	return text
}

// chatTurn returns the new tokens of a chat: of all its messages, or of those after the session's
// turns.
func (s *Service) chatTurn(ctx context.Context, g *Request, c Chat) (ids []int32, turn string, e *apierr.Error) {
	if g.turn != nil {
		if size := len(jsonbody.MustJSON(c.Messages)); size > sessions.MaxTurnBytes/4 {
			return nil, "", apierr.InvalidCode("messages", "session_too_large", "The messages of a turn may have %d bytes; these have %d.",
				sessions.MaxTurnBytes/4, size)
		}
		g.turn.turn.Messages = slices.Clone(c.Messages)
	}
	if !g.extends() {
		return s.ChatPrompt(ctx, c, g.Tools)
	}
	history := g.turn.before.Messages
	c.Messages = slices.Concat(history, c.Messages)
	s.showTools(&c.Conversation, g.Tools)
	all := c.Messages
	c.Messages = all[len(history):]
	segments, turn, err := sessions.Continue(s.render, c.Conversation, all[:len(history)])
	if err != nil {
		return nil, "", s.templateProblem(err)
	}
	ids, e = s.Encode(ctx, segments, false, "messages")
	return ids, turn, e
}

// SetTurn puts the turns of the session before the new tokens, and settles max_tokens.
func (s *Service) SetTurn(g *Request, added []int32, def int, param string) *apierr.Error {
	if len(added) == 0 {
		return apierr.Invalid(param, "'%s' must not be empty.", param)
	}
	if most := s.Config.Limits.PromptTokens; len(added) > most {
		return apierr.InvalidCode(param, "context_length_exceeded", "%s", apierr.ErrTooLong{Limit: most, Prompt: len(added)}.Error())
	}
	t := g.turn
	t.turn.Prompt = added
	ids := slices.Concat(t.before.IDs, added)
	g.Prompts = []Prompt{{Ids: ids}}
	limit := s.longestUnder(g.policy)
	if limit > sessions.MaxTokens {
		limit = sessions.MaxTokens
	}
	return s.fit(len(ids), limit, &g.Params, def, param)
}

// begin reserves the session until end.
func (t *sessionTurn) begin(ctx context.Context, w http.ResponseWriter) *apierr.Error {
	if err := t.book.Begin(ctx, t.tenant, t.name, t.before.Turns); err != nil {
		return SessionProblem(err, t.name)
	}
	t.begun = true
	w.Header().Set("X-Session-Turns", strconv.Itoa(t.before.Turns+1))
	return nil
}

// end lets the next turn begin. The client must not get the end of an answer, or its error, before. t may
// be nil.
func (t *sessionTurn) end() {
	if t != nil && t.begun {
		t.begun = false
		t.book.End(t.id)
	}
}

// read returns how many of a prompt's tokens prefill reads. t may be nil.
func (t *sessionTurn) read(tokens int) int {
	if t == nil || t.before.First == 0 {
		return tokens
	}
	return t.before.First
}

// apply adds the turn to the request for the engine.
func (t *sessionTurn) apply(r *engine.Request) {
	r.Session, r.SessionTTL = t.name, time.Duration(t.turn.TTL)*time.Second
	r.Context = t.read(len(r.Prompt))
}

// take adds an event of the engine to the answer, with its part for the client. With the last event
// it records the turn. t may be nil.
func (t *sessionTurn) take(ev engine.Event, d Delta, finish string) error {
	if t == nil || t.done {
		return nil
	}
	if ev.Token != engine.NoToken && ev.Finish != engine.FinishStop {
		t.turn.Output = append(t.turn.Output, ev.Token)
	}
	t.text.WriteString(d.Text)
	t.answer.Add(d)
	if finish == "" {
		return nil
	}
	t.done = true
	if t.turn.Messages != nil {
		m := engine.Message{Role: "assistant", Content: t.text.String(), Thought: t.answer.Thought}
		var calls []ToolCall
		for _, c := range t.answer.Calls {
			calls = append(calls, c.ToolCall())
		}
		if calls != nil {
			m.Calls, m.Empty = jsonbody.MustJSON(calls), m.Content == ""
		}
		t.turn.Messages = append(t.turn.Messages, m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	err := t.book.Commit(ctx, t.id, t.before.Turns, t.turn)
	t.end()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sessions.ErrMoved), errors.Is(err, sessions.ErrRecord), errors.Is(err, sessions.ErrLarge),
		errors.Is(err, sessions.ErrDamaged):
		return SessionProblem(err, t.name)
	}
	e := apierr.Unavailable("session_not_recorded", "The answer was computed, but the turn could not be recorded ("+err.Error()+
		"). Read the session to see whether it has the turn, and send the turn again if not.", time.Second)
	e.Retryable = false // the session may have the turn
	return e
}

func sessionConflict(param, code, format string, args ...any) *apierr.Error {
	e := apierr.InvalidCode(param, code, format, args...)
	e.Status = http.StatusConflict
	return e
}

// SessionProblem returns the client's error for an error of the book.
func SessionProblem(err error, name string) *apierr.Error {
	switch {
	case errors.Is(err, sessions.ErrNotFound):
		e := apierr.InvalidCode("session", "session_not_found",
			"There is no session %s here: it was deleted, its time to live is over, or it never was.", quoted(name))
		e.Status = http.StatusNotFound
		return e
	case errors.Is(err, sessions.ErrBusy):
		return sessionConflict("session", "session_busy", "A turn of session %s is running: send the next one after its answer.", quoted(name))
	case errors.Is(err, sessions.ErrMoved):
		return sessionConflict("session", "session_moved",
			"Another request has continued or ended session %s meanwhile: read it with GET /v1/sessions/%s.", quoted(name), name)
	case errors.Is(err, sessions.ErrMany):
		return sessionConflict("session", "too_many_sessions", "This server holds at most %d sessions; delete one first.",
			sessions.MaxSessions)
	case errors.Is(err, sessions.ErrShare):
		return sessionConflict("session", "too_many_sessions", "No session can begin: %v. A key may have half of the sessions that other keys "+
			"leave free. Delete one with DELETE /v1/sessions/{name}, or give 'session_ttl' so that they end sooner.",
			strings.TrimPrefix(err.Error(), "sessions: "))
	case errors.Is(err, sessions.ErrLarge):
		return sessionConflict("session", "session_too_large", "No turn can be added: %v. Delete sessions that are not needed.",
			strings.TrimPrefix(err.Error(), "sessions: "))
	case errors.Is(err, sessions.ErrRecord):
		return sessionConflict("session", "session_too_large", "The turn cannot be stored: %v. Send a shorter one.",
			strings.TrimPrefix(err.Error(), "sessions: "))
	case errors.Is(err, sessions.ErrDamaged):
		return &apierr.Error{Status: http.StatusInternalServerError, Type: apierr.TypeServer, Param: "session", Code: "record_damaged",
			Message: "The records of session " + quoted(name) + " are damaged: delete it, and send the conversation as a new one."}
	}
	return apierr.Of(err)
}

// sessionEnder is an engine that frees the cache of a session before its time.
type sessionEnder interface {
	EndSession(tenant, session string)
}

// DeleteSession deletes a session and frees its cache.
func (s *Service) DeleteSession(ctx context.Context, tenant, name string) *apierr.Error {
	b, e := s.Sessions()
	if e != nil {
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := b.Delete(ctx, tenant, name); err != nil {
		return SessionProblem(err, name)
	}
	s.EndSession(tenant, name)
	return nil
}

// EndSession frees the caches of a session that is over, in memory and in files.
func (s *Service) EndSession(tenant, name string) {
	for _, p := range s.peers {
		if x, ok := p.engine.(sessionEnder); ok {
			x.EndSession(tenant, name)
		}
	}
}

// SessionMetrics returns the numbers of sessions and of their tokens.
func (s *Service) SessionMetrics() []prometheus.Collector {
	gauge := func(name, help string, of func(sessions, tokens int) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			b, e := s.Sessions()
			if e != nil {
				return math.NaN()
			}
			return float64(of(b.Totals()))
		})
	}
	return []prometheus.Collector{
		gauge("shoal_sessions", "Sessions that are kept; NaN while their store is away.", func(n, _ int) int { return n }),
		gauge("shoal_session_tokens", "Tokens of all turns of these sessions.", func(_, n int) int { return n }),
	}
}
