package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

// chunkBody is one chunk of a stream of either endpoint.
type chunkBody struct {
	head
	Choices []any           `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`   // null on all but the last with include_usage
	Figures *figures        `json:"metrics,omitempty"` // on that
}

// stream answers with one chunk per token that has text to show.
//
// Headers wait for the first token (or the first keep-alive), so that a request
// that fails before it still gets a proper status. After that a failure is an
// error event and the end of the stream without [DONE].
func (s *Server) stream(ctx context.Context, w http.ResponseWriter, run *run) {
	out := newSSE(w, s.cfg.Limits.WriteTimeout)
	out.lines = run.lines
	out.reader = &reader{after: s.cfg.Limits.UnreadAfter, tell: run.unread}
	if err := s.streamTo(ctx, out, run); err != nil {
		var gone errWrite
		switch {
		case errors.As(err, &gone), errors.Is(err, context.Canceled):
			s.log.Info("api: client left", "id", run.head.ID, "err", err)
			if out.started && out.err == nil { // it may have closed its side alone
				run.fail(out, errLeft)
			}
		case !out.started:
			run.failure = "error"
			s.writeError(w, asAPIError(err), true)
		default:
			run.failure = "error"
			s.log.Warn("api: stream failed", "id", run.head.ID, "err", err)
			run.fail(out, asAPIError(err)) // the client may be gone as well
		}
	}
}

// fail ends a stream with an error in the protocol's words.
func (r *run) fail(out *sse, e *apiError) {
	if r.framer != nil {
		r.framer.failed(out, r, e)
		return
	}
	out.data(e)
}

// errWrite: the client does not read any more.
type errWrite struct{ error }

func (s *Server) streamTo(ctx context.Context, out *sse, run *run) error {
	var batch []arrival
	for run.open > 0 {
		var err error
		batch, err = run.wait(ctx, batch, s.cfg.KeepAlive)
		if errors.Is(err, errIdle) {
			if run.framer != nil {
				run.framer.alive(out, run)
			} else {
				out.comment("keep-alive")
			}
			if out.err != nil {
				return out.failure()
			}
			continue
		}
		if err != nil {
			return err
		}
		out.hold()
		err = run.show(out, batch)
		if out.release(); err != nil {
			return err
		}
	}
	if run.framer != nil {
		run.framer.end(out, run)
		return out.failure()
	}
	if run.includeUsage {
		c := chunkBody{head: run.head, Choices: []any{}}
		u := run.usage()
		c.Usage, _ = json.Marshal(u)
		c.Figures = u.figures
		out.data(c)
	}
	out.done()
	return out.failure()
}

// show writes what has arrived.
func (r *run) show(out *sse, batch []arrival) error {
	for _, a := range batch {
		d, show, err := r.accept(a)
		if err != nil {
			return err
		}
		if !show {
			continue
		}
		if r.framer != nil {
			r.framer.delta(out, r, d)
		} else {
			out.data(r.chunk(d))
		}
		if out.err != nil {
			return out.failure()
		}
	}
	return nil
}

func (r *run) chunk(d delta) chunkBody {
	c := r.shape.chunk(d)
	switch {
	case r.eachUsage:
		c.Usage, _ = json.Marshal(r.usage())
	case r.includeUsage:
		c.Usage = nullUsage
	}
	return c
}
