package generate

import (
	"context"
	"errors"
	"net/http"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// stream answers with one event per token that has text to show.
//
// Headers wait for the first token (or the first keep-alive), so that a request
// that fails before it still gets a proper status. After that a failure is an
// error event, and the stream ends there.
func (s *Service) stream(ctx context.Context, w http.ResponseWriter, run *Run) {
	out := httpserver.NewStream(w, s.Config.Limits.WriteTimeout)
	out.Watch = &httpserver.SlowReader{After: s.Config.Limits.UnreadAfter, Notify: run.unread}
	enc := run.NewEncoder(run, out)
	err := run.play(ctx, enc, out, s.Config.KeepAlive)
	var writeErr httpserver.ErrWrite
	switch {
	case err == nil:
	case errors.As(err, &writeErr), errors.Is(err, context.Canceled):
		s.Log.Info("generate: client left", "id", run.Head.ID, "error", err)
		if out.Started && out.Err == nil { // it may have closed its side alone
			enc.Fail(apierr.ErrClientClosedRequest)
		}
	case !out.Started:
		run.failure = "error"
		s.HTTP.Fail(w, apierr.Of(err), true)
	default:
		run.failure = "error"
		s.Log.Warn("generate: stream failed", "id", run.Head.ID, "error", err)
		enc.Fail(apierr.Of(err)) // the client may be gone as well
	}
}
