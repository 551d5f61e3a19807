package httpserver

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/internal/lograte"
)

// access logs one line a request at info, or at debug for the frequent requests of monitors. Any client
// can cause refusals, so the lines of each error status are rate-limited.
func (s *Server) access(r *http.Request, sc *scope, known *Route, status int, began time.Time) {
	level := slog.LevelInfo
	if known != nil && known.Brief && (status < 400 || status == http.StatusServiceUnavailable) { // not ready yet is an answer too
		level = slog.LevelDebug
	}
	if !s.log.Enabled(r.Context(), level) {
		return
	}
	path := r.URL.Path
	more := []any{"id", sc.Id, "method", r.Method, "path", path[:min(len(path), 256)], "status", status, "seconds",
		time.Since(began).Seconds(), "client", r.RemoteAddr}
	if sc.key != nil && sc.key.Name != "" {
		more = append(more, "key", sc.key.Name)
	}
	if sc.Adapter != "" {
		more = append(more, "adapter", sc.Adapter)
	}
	if sc.Tokens.Total() > 0 {
		more = append(more, "prompt_tokens", sc.Tokens.Prompt, "completion_tokens", sc.Tokens.Completion)
	}
	if status >= 400 {
		ok, leftOut, last := s.refused.Allow(strconv.Itoa(status), time.Now())
		if !ok {
			return
		}
		more = append(more, lograte.Attrs(leftOut, last)...)
	}
	s.log.Log(context.WithoutCancel(r.Context()), level, "request", more...)
}
