package generate

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// TestSessionProblems: errors have the fault of a session, its name, and advice for the client.
func TestSessionProblems(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		says   []string
	}{
		{sessions.ErrNotFound, http.StatusNotFound, "session_not_found", []string{`"walk"`}},
		{sessions.ErrBusy, http.StatusConflict, "session_busy", []string{`"walk"`, "after its answer"}},
		{sessions.ErrMoved, http.StatusConflict, "session_moved", []string{`"walk"`, "GET /v1/sessions/walk"}},
		{sessions.ErrMany, http.StatusConflict, "too_many_sessions", []string{"1024", "delete one"}},
		{sessions.ErrShare, http.StatusConflict, "too_many_sessions", []string{"it has 512", "half", "DELETE /v1/sessions/"}},
		{sessions.ErrLarge, http.StatusConflict, "session_too_large", []string{"Delete sessions"}},
		{sessions.ErrDamaged, http.StatusInternalServerError, "record_damaged", []string{`"walk"`, "delete it"}},
	} {
		e := SessionProblem(fmt.Errorf("%w: it has 512", c.err), "walk")
		if e.Status != c.status || e.Code != c.code {
			t.Errorf("%v: %d %s", c.err, e.Status, e.Code)
		}
		for _, word := range c.says {
			if !strings.Contains(e.Message, word) {
				t.Errorf("%v: %q lacks %s", c.err, e.Message, word)
			}
		}
	}
	if e := SessionProblem(errors.New("the disk is away"), "walk"); e.Status < 500 {
		t.Errorf("%+v", e)
	}
}
