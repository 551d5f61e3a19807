package apierr

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// ErrOverloaded means that the queue is full. Nothing was accepted; the client may retry.
type ErrOverloaded struct {
	RetryAfter time.Duration
	Reason     string
}

func (e ErrOverloaded) Error() string { return "api: overloaded: " + e.Reason }

// ErrDegraded means that the engine serves, but will soon need something that is missing.
type ErrDegraded struct{ Reason string }

func (e ErrDegraded) Error() string { return "api: degraded: " + e.Reason }

// ErrNotReady means that the engine is loading, recovering or draining.
type ErrNotReady struct {
	Reason     string
	RetryAfter time.Duration
}

func (e ErrNotReady) Error() string { return "api: not ready: " + e.Reason }

// ErrTooLong means that the prompt leaves no room for a completion. Counts are in tokens.
type ErrTooLong struct {
	Limit, Prompt int
	Completion    int  // that was asked for; 0: no number was given
	AtLeast       bool // Prompt is a lower bound: it was not encoded to its end
}

func (e ErrTooLong) Error() string {
	if e.Completion == 0 {
		bound := ""
		if e.AtLeast {
			bound = "at least "
		}
		return fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt has %s%d tokens, which leaves no room for "+
			"an answer. Please reduce the length of the prompt.", e.Limit, bound, e.Prompt)
	}
	return fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d in the "+
		"completion). Please reduce the length of the prompt or completion.",
		e.Limit, e.Prompt+e.Completion, e.Prompt, e.Completion)
}

// ErrInvalid means that the engine refuses a parameter. Code may be empty.
type ErrInvalid struct{ Param, Code, Message string }

func (e ErrInvalid) Error() string { return "api: invalid " + e.Param + ": " + e.Message }

// ErrFailed means that an accepted sequence could not be finished. Code is the engine's own, and
// stable.
type ErrFailed struct{ Code, Message string }

func (e ErrFailed) Error() string { return "cluster: " + e.Code + ": " + e.Message }

// Problem is an error of a package that has routes of its own.
type Problem struct {
	Status               int
	Code, Param, Message string
	RetryAfter           time.Duration // > 0: sent as Retry-After
}

func (p Problem) Error() string { return p.Message }

func (p Problem) apiError() *Error {
	e := &Error{Status: p.Status, Type: TypeInvalid, Code: p.Code, Param: p.Param, Message: p.Message, RetryAfter: p.RetryAfter}
	switch {
	case p.Status == http.StatusTooManyRequests:
		e.Type = TypeRateLimit
	case p.Status >= 500:
		e.Type = TypeServer
		e.Retryable = p.Status == http.StatusServiceUnavailable
	}
	return e
}

var (
	ErrShutdown       = errors.New("api: the server is shutting down")
	ErrRequestTimeout = errors.New("api: the request took longer than the server allows")
)

// StatusClientClosedRequest is nginx's status for a client that left.
const StatusClientClosedRequest = 499

// ErrClientClosedRequest answers a client that closed its side of the connection before the answer was there.
var ErrClientClosedRequest = &Error{Status: StatusClientClosedRequest, Type: TypeInvalid, Code: "client_closed_request",
	Message: "The client closed the connection, or its side of it, before the answer was complete. Keep it open until the answer has come."}

// Error types of the OpenAI protocol.
const (
	TypeInvalid    = "invalid_request_error"
	TypeAuth       = "authentication_error"
	TypePermission = "permission_error"
	TypeRateLimit  = "rate_limit_error"
	TypeServer     = "server_error"
)

// Error is an error of the API.
type Error struct {
	Status     int
	Type       string
	Param      string
	Code       string
	Message    string
	RetryAfter time.Duration // > 0: sent as Retry-After
	Retryable  bool          // nothing was done, even if the request was accepted
	Allow      string        // Allow header of a 405
}

func (e *Error) Error() string { return e.Message }

func (e *Error) MarshalJSON() ([]byte, error) {
	body := ErrorBody{ErrorDetail{Message: e.Message, Type: e.Type}}
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	if e.Code != "" {
		body.Error.Code = &e.Code
	}
	return json.Marshal(body)
}

type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

type ErrorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func Invalid(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

func InvalidCode(param, code, format string, args ...any) *Error {
	e := Invalid(param, format, args...)
	e.Code = code
	return e
}

// Of maps an error of the engine or of a context to the error that the client gets.
func Of(err error) *Error {
	var (
		api  *Error
		over ErrOverloaded
		not  ErrNotReady
		long ErrTooLong
		inv  ErrInvalid
		fail ErrFailed
		par  *sampler.ParamError
		prob Problem
	)
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &prob):
		return prob.apiError()
	case errors.As(err, &over):
		return Unavailable("overloaded", "The server is overloaded: "+cmp.Or(over.Reason, "the queue is full")+".", over.RetryAfter)
	case errors.As(err, &not):
		return Unavailable("not_ready", "The server is not ready: "+cmp.Or(not.Reason, "loading")+".", not.RetryAfter)
	case errors.As(err, &long):
		return InvalidCode("", "context_length_exceeded", "%s", long.Error())
	case errors.As(err, &inv):
		return InvalidCode(inv.Param, inv.Code, "%s", inv.Message)
	case errors.As(err, &fail):
		return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: fail.Code, Message: fail.Message}
	case errors.As(err, &par):
		return Invalid(par.Param, "'%s' %s.", par.Param, par.Message)
	case errors.Is(err, ErrShutdown):
		return Unavailable("shutting_down", "The server is shutting down.", 0)
	case errors.Is(err, ErrRequestTimeout), errors.Is(err, context.DeadlineExceeded):
		return &Error{Status: http.StatusGatewayTimeout, Type: TypeServer, Code: "timeout",
			Message: "The request took longer than the server allows."}
	}
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: "engine_error", Message: err.Error()}
}

func Unavailable(code, message string, retry time.Duration) *Error {
	if retry <= 0 {
		retry = time.Second
	}
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeServer, Code: code, Message: message, RetryAfter: retry, Retryable: true}
}

// ErrorStatus returns the status and the body that a client would get for err.
func ErrorStatus(err error) (status int, body json.RawMessage) {
	e := Of(err)
	b, err := json.Marshal(e)
	if err != nil {
		return http.StatusInternalServerError, json.RawMessage(`{}`)
	}
	return e.Status, b
}
