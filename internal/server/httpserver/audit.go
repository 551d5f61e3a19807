package httpserver

import (
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// audit records each request that may change something, and requests that were refused for
// their key, at most refusedPerSecond of them.
type audit struct {
	log *slog.Logger // nil: nothing is written

	mu      sync.Mutex
	second  time.Time
	refused int // in this second
	left    int // of them, not written
}

// refusedPerSecond is the largest number of refusals recorded in a second: guessing keys must
// not fill the disk.
const refusedPerSecond = 10

func (a *audit) request(r *http.Request, sc *scope, status int, began time.Time) {
	denied := status == http.StatusUnauthorized || status == http.StatusForbidden
	if a.log == nil || !denied && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return
	}
	missed, write := 0, true
	if denied {
		missed, write = a.refusal(began)
	}
	if !write {
		return
	}
	name, role := "", ""
	if sc.key != nil {
		name, role = sc.key.Name, sc.key.Role
	}
	more := []any{"id", sc.Id, "key", name, "role", role, "client", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "status", status,
		"seconds", time.Since(began).Seconds()}
	if sc.Tokens.Total() > 0 {
		more = append(more, "prompt_tokens", sc.Tokens.Prompt, "completion_tokens", sc.Tokens.Completion)
	}
	if missed > 0 {
		more = append(more, "refusals_not_written", missed)
	}
	a.log.Info("request", more...)
}

// refusal counts one. It returns whether to record it, and how many before it were not recorded.
func (a *audit) refusal(now time.Time) (missed int, write bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.second) >= time.Second {
		a.second, a.refused = now, 0
	}
	if a.refused++; a.refused > refusedPerSecond {
		a.left++
		return 0, false
	}
	missed, a.left = a.left, 0
	return missed, true
}
