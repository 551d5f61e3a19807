package httpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// Route is one entry of the only table of routes. A path that
// ends in "/*" takes the rest of the path as one value.
type Route struct {
	Method, Path string
	Public       bool // answers without a key
	Brief        bool // answers at once, also when there are too many connections
	Operator     bool // takes a key with the role operator
	Uncounted    bool // does work that a limit on tokens does not count: keys with one are refused
	Uploads      bool // takes multipart/form-data
	BasicAuth    bool // asks a browser for a key as the password

	// Format is the error format of the path; nil: the OpenAI format. A route without a handler sets the
	// format of the paths below it that no other route has.
	Format  ErrorFormat
	Handler http.HandlerFunc
	Docs    []Doc // its description in OpenAPI
}

// Doc describes a route's request and answers.
type Doc struct {
	Path     string // below a route that ends in "/*", with {id}; "": {id} alone
	About    string
	Params   *jsonbody.Table // of the body, or nil if there is none
	Required []string
	Answer   any // a value of the type that is written; nil: any JSON
	Events   any // of a stream
}

// ErrorFormat returns the body of an error in a protocol's form.
type ErrorFormat func(*apierr.Error) any

// Handle adds a route. Call it before Handler.
func (s *Server) Handle(route Route) error {
	for _, r := range s.routes {
		if r.Method == route.Method && r.Path == route.Path {
			return fmt.Errorf("httpserver: route %s %s is registered twice", r.Method, r.Path)
		}
	}
	s.routes = append(s.routes, route)
	return nil
}

// HandleAll adds routes.
func (s *Server) HandleAll(routes []Route) error {
	for _, r := range routes {
		if err := s.Handle(r); err != nil {
			return err
		}
	}
	return nil
}

// Collect returns the routes that add adds, instead of adding them.
func (s *Server) Collect(add func() error) ([]Route, error) {
	before := s.routes
	s.routes = nil
	err := add()
	added := s.routes
	s.routes = before
	return added, err
}

// Routes returns the table.
func (s *Server) Routes() []Route { return slices.Clone(s.routes) }

// found is the result of a lookup in the table.
type found struct {
	route  *Route      // nil: none takes the method
	allow  []string    // methods of the path
	format ErrorFormat // of the path
}

// find looks a request up. The longest pattern wins.
func find(routes []Route, method, path string) (f found) {
	best := -1
	for i := range routes {
		r := &routes[i]
		n, ok := match(r.Path, path)
		if !ok || n < best {
			continue
		}
		if n > best {
			best, f = n, found{format: r.Format}
		}
		if r.Handler == nil {
			continue
		}
		f.allow = append(f.allow, r.Method)
		if r.Method == method || method == http.MethodHead && r.Method == http.MethodGet {
			f.route = r
		}
	}
	return f
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

// scope is the data that one request carries through its handlers.
type scope struct {
	Id       string     // x-request-id
	Accepted bool       // the engine has taken work: a retry would do it twice
	key      *Principal // nil: the request has no key that is known
	Tokens   TokenCount // of the request's answer, so far
	Adapter  string     // name of its LoRA adapter; "": none
	Span     *tracing.Request
	booked   int64 // bytes of the body, in budget
	budget   *bodyBudget
	body     []byte // read and not decoded yet; nil: not read
}

type scopeKey struct{}

// TokenCount is the number of tokens that a request used.
type TokenCount struct{ Prompt, Completion int }

// Total returns the sum of both.
func (t TokenCount) Total() int { return t.Prompt + t.Completion }

// Principal returns the owner of the request.
func (sc *scope) Principal() *Principal {
	if sc.key == nil {
		return anonymous
	}
	return sc.key
}

func ScopeOf(r *http.Request) *scope {
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
		sc := &scope{Id: requestID(r)}
		r = r.WithContext(context.WithValue(r.Context(), scopeKey{}, sc))
		at := find(routes, r.Method, r.URL.Path)
		route := at.route
		w := &response{ResponseWriter: rw, format: at.format}
		h := w.Header()
		h.Set("X-Request-Id", sc.Id)
		h.Set("X-Content-Type-Options", "nosniff")
		name := "other"
		body := r.Body != nil && r.Body != http.NoBody
		defer func() {
			sc.Settle()
			if p := recover(); p != nil {
				s.panicked(w, r, sc, p)
			}
			if w.status == 0 && r.Context().Err() != nil {
				s.Fail(w, apierr.ErrClientClosedRequest, true) // for a client that closed its sending side only; net/http would send 200
			}
			if body && w.status >= 400 && !brief(r) {
				s.drain(w, r)
			}
			sc.Span.End(w.code())
			s.cfg.Observe(name, w.code())
			s.audit.request(r, sc, w.code(), began)
			s.access(r, sc, route, w.code(), began)
		}()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // writers set their own
		if body {                                                       // else net/http watches the connection already
			r.Body = s.pace(w, r.Body)
		}
		if route != nil {
			name = route.Path
			if !route.Brief {
				sc.Span = s.cfg.Tracer.Request(r, route.Path, sc.Id)
			}
		}
		sc.key = s.keys.Load().find(r)
		strange, preflight := s.foreign(r, route), s.cors(h, r)
		switch {
		case brief(r) && !(route != nil && route.Brief):
			h.Set("Connection", "close")
			s.Fail(w, apierr.Unavailable("overloaded",
				"The server has reached its limit of open connections: close those that are idle, or try again.", time.Second), false)
		case preflight:
			w.WriteHeader(http.StatusNoContent)
		case strange != nil && (route == nil || !route.Public):
			s.Fail(w, strange, false)
		case (route == nil || !route.Public) && sc.key == nil:
			s.unauthorized(w, route)
		case route != nil && route.Operator && sc.key != nil && sc.key.Role != RoleOperator:
			s.Fail(w, forbidden("This API key may not change the cluster: that takes the role "+RoleOperator+"."), false)
		case route != nil && route.Method == http.MethodPost:
			if e := s.admitPost(route, sc.key); e != nil {
				s.Fail(w, e, false)
				return
			}
			defer sc.key.release()
			s.dispatch(w, r, route)
		case route != nil:
			s.dispatch(w, r, route)
		case at.allow != nil:
			s.Fail(w, &apierr.Error{Status: http.StatusMethodNotAllowed, Type: apierr.TypeInvalid, Code: "method_not_allowed",
				Message: fmt.Sprintf("%s takes %s, not %s.", r.URL.Path, strings.Join(at.allow, ", "), r.Method), Allow: strings.Join(at.allow, ", ")},
				false)
		default:
			s.Fail(w, &apierr.Error{Status: http.StatusNotFound, Type: apierr.TypeInvalid, Code: "unknown_url",
				Message: fmt.Sprintf("There is no %s %s here: GET /openapi.json lists the routes.", r.Method, r.URL.Path)}, false)
		}
	})
}

func forbidden(why string) *apierr.Error {
	return &apierr.Error{Status: http.StatusForbidden, Type: apierr.TypePermission, Code: "permission_denied", Message: why}
}

// admitPost counts a request of a key, which must then be released, or returns the refusal.
func (s *Server) admitPost(route *Route, key *Principal) *apierr.Error {
	switch {
	case s.draining.Load():
		return apierr.Of(apierr.ErrShutdown)
	case key.TokensPerMinute > 0 && route.Uncounted:
		return forbidden("This API key has a limit on tokens, which a batch would pass: send its requests one by one, also as jobs.")
	}
	return key.acquire()
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, route *Route) {
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	if !route.Brief {
		s.working.Add(1)
		defer s.working.Add(-1)
	}
	route.Handler(w, r)
}

func (s *Server) unauthorized(w http.ResponseWriter, route *Route) {
	challenge := `Bearer realm="shoal"`
	if route != nil && route.BasicAuth {
		challenge = `Basic realm="shoal: any user name, an API key as the password", charset="UTF-8"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	s.Fail(w, &apierr.Error{Status: http.StatusUnauthorized, Type: apierr.TypeAuth, Code: "invalid_api_key",
		Message: "The API key is missing or wrong; send it as Authorization: Bearer KEY."}, false)
}

// panicked answers for a handler that broke an invariant. Nothing of the panic
// reaches the client but the request id.
func (s *Server) panicked(w *response, r *http.Request, sc *scope, p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	s.log.Error("httpserver: handler panicked", "id", sc.Id, "method", r.Method, "path", r.URL.Path,
		"panic", p, "stack", string(debug.Stack()))
	e := &apierr.Error{Status: http.StatusInternalServerError, Type: apierr.TypeServer, Code: "internal",
		Message: "An internal error occurred (request " + sc.Id + ")."}
	switch {
	case w.status == 0:
		w.Header().Del("Content-Length")
		s.Fail(w, e, sc.Accepted)
	case strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream"):
		out := NewSSE(NewStream(w, s.cfg.Limits.WriteTimeout))
		out.Started = true
		if w.format != nil {
			out.Named("error", w.format(e)) // as Anthropic's streams name it
			return
		}
		out.Data(e)
	default:
		panic(http.ErrAbortHandler) // half a body is out: cut it, rather than let it look whole
	}
}

// response remembers the status.
type response struct {
	http.ResponseWriter
	format ErrorFormat // of errors; nil: the OpenAI format
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
		return apierr.StatusClientClosedRequest // nothing was sent: the client had left
	}
	return w.status
}

// requestID returns the client's request id if a log can hold it safely, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	ok := id != "" && len(id) <= 128
	for _, c := range []byte(id) {
		ok = ok && (c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("-_.:/=+", c) >= 0)
	}
	if ok {
		return id
	}
	return "req-" + strings.ToLower(rand.Text())
}
