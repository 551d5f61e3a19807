package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/tracing"
)

// route is one entry of the only table of what this server answers. A path that
// ends in "/*" takes the rest of the path as one value.
type route struct {
	method, path string
	public       bool // answers without a key
	brief        bool // answers at once, also when there are too many connections
	handle       http.HandlerFunc
}

func (s *Server) ownRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{get, "/health", true, true, s.handleHealth},
		{get, "/ready", true, true, s.handleReady},
		{get, "/{$}", false, false, s.handleRoot},
		{get, "/web/*", false, false, s.handlePage},
		{get, "/openapi.json", false, false, s.handleOpenAPI},
		{get, "/version", false, true, s.handleVersion},
		{get, "/metrics", false, true, s.handleMetrics},
		{get, "/v1/models", false, true, s.handleModels},
		{get, "/v1/models/*", false, true, s.handleModel},
		{get, "/v1/cluster", false, true, s.handleCluster},
		{post, "/v1/chat/completions", false, false, s.generateHandler(s.decodeChat)},
		{post, "/v1/completions", false, false, s.handleCompletions},
		{post, "/v1/responses", false, false, s.handleResponses},
		{post, "/v1/responses/input_tokens", false, false, jsonHandler(s, s.inputTokens)},
		{post, "/v1/messages", false, false, s.generateHandler(s.decodeMessagesBody)},
		{post, "/v1/messages/count_tokens", false, false, jsonHandler(s, s.countTokens)},
		{post, "/api/chat", false, false, s.handleOllama},
		{post, "/api/generate", false, false, s.handleOllama},
		{get, "/api/tags", false, true, s.handleOllamaTags},
		{get, "/api/ps", false, true, s.handleOllamaRunning},
		{get, "/api/version", false, true, s.handleOllamaVersion},
		{post, "/api/show", false, false, jsonHandler(s, s.showModel)},
		{post, "/api/pull", false, false, s.handleOllamaPull},
		{post, "/v1/contexts", false, false, s.handleMakeContext},
		{get, "/v1/contexts", false, true, s.handleContexts},
		{get, "/v1/contexts/*", false, true, s.handleContext},
		{http.MethodDelete, "/v1/contexts/*", false, true, s.handleContext},
		{post, "/tokenize", false, false, jsonHandler(s, s.tokenize)},
		{post, "/detokenize", false, false, jsonHandler(s, s.detokenize)},
		{get, "/tokenizer_info", false, false, s.handleTokenizerInfo},
	}
}

// Handle adds a route of another package, behind the same keys, limits of the
// connection, log and panic guard. path may end in "/*". Call it before Handler.
func (s *Server) Handle(method, path string, h http.Handler) error {
	for _, r := range s.routes {
		if r.method == method && r.path == path {
			return fmt.Errorf("api: route %s %s is taken", method, path)
		}
	}
	s.routes = append(s.routes, route{method, path, false, false, h.ServeHTTP})
	return nil
}

// find returns the handler, or the methods the path has when the method is not
// among them. The longest pattern wins.
func find(routes []route, method, path string) (h *route, allow []string) {
	best := -1
	for i := range routes {
		r := &routes[i]
		n, ok := match(r.path, path)
		if !ok || n < best {
			continue
		}
		if n > best {
			best, h, allow = n, nil, nil
		}
		allow = append(allow, r.method)
		if r.method == method || method == http.MethodHead && r.method == http.MethodGet {
			h = r
		}
	}
	return h, allow
}

func match(pattern, path string) (length int, ok bool) {
	if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
		return len(prefix), len(path) > len(prefix) && strings.HasPrefix(path, prefix)
	}
	if pattern == "/{$}" {
		pattern = "/"
	}
	return len(pattern) + 1, pattern == path // exact beats a prefix of the same length
}

// scope is what one request carries through its handlers.
type scope struct {
	id       string  // x-request-id
	accepted bool    // the engine has taken work: a retry would do it twice
	holder   *holder // who asks; nil: nobody who may
	tokens   usage   // of the request's answer, so far
	span     *tracing.Request
	booked   int64 // bytes of the body, in budget
	budget   *bodyBudget
}

type scopeKey struct{}

// who is the key of the request.
func (sc *scope) who() *holder {
	if sc.holder == nil {
		return anyone
	}
	return sc.holder
}

func scopeOf(r *http.Request) *scope {
	if sc, ok := r.Context().Value(scopeKey{}).(*scope); ok {
		return sc
	}
	return &scope{}
}

// Handler answers all routes. Everything that is not in the table, and not
// public, needs a key before it is even a 404.
func (s *Server) Handler() http.Handler {
	routes := slices.Clone(s.routes)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		sc := &scope{id: requestID(r)}
		r = r.WithContext(context.WithValue(r.Context(), scopeKey{}, sc))
		w := &response{ResponseWriter: rw, words: wordsOf(r.URL.Path)}
		h := w.Header()
		h.Set("X-Request-Id", sc.id)
		h.Set("X-Content-Type-Options", "nosniff")
		name := "other"
		var route *route
		body := r.Body != nil && r.Body != http.NoBody
		defer func() {
			sc.settle()
			if p := recover(); p != nil {
				s.panicked(w, r, sc, p)
			}
			if w.status == 0 && r.Context().Err() != nil {
				s.writeError(w, errLeft, true) // for one who closed its side alone; else net/http says 200
			}
			if body && w.status >= 400 && !brief(r) {
				s.drain(w, r)
			}
			sc.span.End(w.code())
			s.metrics.http(name, w.code())
			s.audit.request(r, sc, w.code(), began)
			s.access(r, sc, route, w.code(), began)
		}()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // whoever writes sets one
		if body {                                                       // else net/http watches the connection already
			r.Body = s.pace(w, r.Body)
		}
		var allow []string
		route, allow = find(routes, r.Method, r.URL.Path)
		if route != nil {
			name = route.path
			if !route.brief {
				sc.span = s.cfg.Tracer.Request(r, route.path, sc.id)
			}
		}
		sc.holder = s.keys.Load().find(r)
		strange, preflight := s.foreign(r), s.cors(h, r)
		switch {
		case brief(r) && !(route != nil && route.brief):
			h.Set("Connection", "close")
			s.writeError(w, unavailable("overloaded", "The server has as many connections as it may have.", time.Second), false)
		case preflight:
			w.WriteHeader(http.StatusNoContent)
		case strange != nil && (route == nil || !route.public):
			s.writeError(w, strange, false)
		case (route == nil || !route.public) && sc.holder == nil:
			s.unauthorized(w, r)
		case route != nil && sc.holder != nil && sc.holder.Role != RoleOperator && changesCluster(r):
			s.writeError(w, forbidden("This API key may not change the cluster: that takes the role "+RoleOperator+"."), false)
		case route != nil && route.method == http.MethodPost:
			if e := s.mayPost(r, sc.holder); e != nil {
				s.writeError(w, e, false)
				return
			}
			defer sc.holder.leave()
			s.dispatch(w, r, route)
		case route != nil:
			s.dispatch(w, r, route)
		case allow != nil:
			s.writeError(w, &apiError{status: http.StatusMethodNotAllowed, typ: typeInvalid, code: "method_not_allowed",
				message: fmt.Sprintf("%s takes %s, not %s.", r.URL.Path, strings.Join(allow, ", "), r.Method), allow: strings.Join(allow, ", ")}, false)
		default:
			s.writeError(w, &apiError{status: http.StatusNotFound, typ: typeInvalid, code: "unknown_url",
				message: fmt.Sprintf("There is no %s %s here.", r.Method, r.URL.Path)}, false)
		}
	})
}

// changesCluster tells what only operators may do.
func changesCluster(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && (r.URL.Path == "/reset_prefix_cache" || strings.HasPrefix(r.URL.Path, "/v1/nodes/") || strings.HasPrefix(r.URL.Path, "/v1/store/"))
}

func forbidden(why string) *apiError {
	return &apiError{status: http.StatusForbidden, typ: typePermission, code: "permission_denied", message: why}
}

// mayPost lets a request in, which then leaves, or says why not.
func (s *Server) mayPost(r *http.Request, h *holder) *apiError {
	switch {
	case s.draining.Load():
		return asAPIError(errShutdown)
	case h.TokensPerMinute > 0 && r.URL.Path == "/v1/batches":
		return forbidden("This API key has a limit on tokens, which a batch would pass: send its requests one by one, also as jobs.")
	}
	return h.enter()
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, route *route) {
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	if !route.brief {
		s.working.Add(1)
		defer s.working.Add(-1)
	}
	route.handle(w, r)
}

func (s *Server) unauthorized(w http.ResponseWriter, r *http.Request) {
	challenge := `Bearer realm="shoal"`
	if r.Method == http.MethodGet && r.URL.Path == "/" {
		challenge = `Basic realm="shoal: any user name, an API key as the password", charset="UTF-8"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	s.writeError(w, &apiError{status: http.StatusUnauthorized, typ: typeAuth, code: "invalid_api_key",
		message: "The API key is missing or wrong; send it as Authorization: Bearer KEY."}, false)
}

// panicked answers for a handler that broke an invariant. Nothing of the panic
// reaches the client but the request id.
func (s *Server) panicked(w *response, r *http.Request, sc *scope, p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	s.log.Error("api: handler panicked", "id", sc.id, "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	e := &apiError{status: http.StatusInternalServerError, typ: typeServer, code: "internal",
		message: "An internal error occurred (request " + sc.id + ")."}
	switch {
	case w.status == 0:
		w.Header().Del("Content-Length")
		s.writeError(w, e, sc.accepted)
	case strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream"):
		out := newSSE(NewStream(w, s.cfg.Limits.WriteTimeout))
		out.started = true
		out.data(e)
	default:
		panic(http.ErrAbortHandler) // half a body is out: cut it, rather than let it look whole
	}
}

// wordsOf says how errors of a path are worded; nil: as OpenAI does.
func wordsOf(path string) func(*apiError) any {
	switch {
	case strings.HasPrefix(path, "/v1/messages"):
		return messageError
	case strings.HasPrefix(path, "/api/"):
		return ollamaError
	}
	return nil
}

// response remembers the status.
type response struct {
	words func(*apiError) any // of errors, where they are not OpenAI's
	http.ResponseWriter
	status int
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach deadlines and Flush.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) code() int {
	if w.status == 0 {
		return statusLeft // nothing was sent: the client had left
	}
	return w.status
}

// requestID takes the client's if it is harmless in a log, else makes one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	ok := id != "" && len(id) <= 128
	for _, c := range []byte(id) {
		ok = ok && (c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-_.:/=+", c) >= 0)
	}
	if ok {
		return id
	}
	return "req-" + newID()
}
