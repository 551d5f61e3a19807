package openai

import (
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// sessionList is the sessions of a key.
type sessionList struct {
	Object string             `json:"object"`
	Data   []sessions.Session `json:"data"`
}

// deletedSession confirms the end of a session.
type deletedSession struct {
	Object  string `json:"object"`
	Name    string `json:"name"`
	Deleted bool   `json:"deleted"`
}

func (s *API) handleSessions(w http.ResponseWriter, r *http.Request) {
	b, e := s.Sessions()
	if e != nil {
		s.HTTP.Fail(w, e, false)
		return
	}
	s.HTTP.WriteJSON(w, http.StatusOK, sessionList{"list", b.Of(httpserver.KeyName(r.Context()))})
}

func (s *API) handleSession(w http.ResponseWriter, r *http.Request) {
	name, tenant := strings.TrimPrefix(r.URL.Path, "/v1/sessions/"), httpserver.KeyName(r.Context())
	out, e := any(nil), (*apierr.Error)(nil)
	if r.Method == http.MethodDelete {
		out, e = deletedSession{"session", name, true}, s.DeleteSession(r.Context(), tenant, name)
	} else if b, missing := s.Sessions(); missing != nil {
		e = missing
	} else if shown, err := b.Get(r.Context(), tenant, name); err != nil {
		e = generate.SessionProblem(err, name)
	} else {
		out = shown
	}
	if e != nil {
		s.HTTP.Fail(w, e, false)
		return
	}
	s.HTTP.WriteJSON(w, http.StatusOK, out)
}
