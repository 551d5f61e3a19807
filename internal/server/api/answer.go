package api

import (
	"context"
	"errors"
	"net/http"
)

// stream answers with one event per token that has text to show.
//
// Headers wait for the first token (or the first keep-alive), so that a request
// that fails before it still gets a proper status. After that a failure is an
// error event, and the stream ends there.
func (s *Service) stream(ctx context.Context, w http.ResponseWriter, run *run) {
	out := NewStream(w, s.cfg.Limits.WriteTimeout)
	out.watch = &slowReader{after: s.cfg.Limits.UnreadAfter, notify: run.unread}
	enc := run.newEncoder(run, out)
	err := run.play(ctx, enc, out, s.cfg.KeepAlive)
	var gone errWrite
	switch {
	case err == nil:
	case errors.As(err, &gone), errors.Is(err, context.Canceled):
		s.log.Info("api: client left", "id", run.head.ID, "err", err)
		if out.started && out.err == nil { // it may have closed its side alone
			enc.fail(errLeft)
		}
	case !out.started:
		run.failure = "error"
		s.http.writeError(w, asAPIError(err), true)
	default:
		run.failure = "error"
		s.log.Warn("api: stream failed", "id", run.head.ID, "err", err)
		enc.fail(asAPIError(err)) // the client may be gone as well
	}
}
