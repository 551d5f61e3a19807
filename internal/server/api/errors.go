package api

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

// ErrOverloaded: the queue is full. Nothing was accepted; the client may retry.
type ErrOverloaded struct {
	RetryAfter time.Duration
	Reason     string
}

func (e ErrOverloaded) Error() string { return "api: overloaded: " + e.Reason }

// ErrDegraded: the engine serves, and something that it needs before long is missing.
type ErrDegraded struct{ Reason string }

func (e ErrDegraded) Error() string { return "api: degraded: " + e.Reason }

// ErrNotReady: the engine is loading, recovering or draining.
type ErrNotReady struct {
	Reason     string
	RetryAfter time.Duration
}

func (e ErrNotReady) Error() string { return "api: not ready: " + e.Reason }

// ErrTooLong: the prompt leaves no room for a completion. Counts are in tokens.
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
		return fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt has %s%d tokens, which leaves no room for an answer. Please reduce the length of the prompt.", e.Limit, bound, e.Prompt)
	}
	return fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d in the completion). Please reduce the length of the prompt or completion.",
		e.Limit, e.Prompt+e.Completion, e.Prompt, e.Completion)
}

// ErrInvalid: the engine refuses a parameter. Code may be empty.
type ErrInvalid struct{ Param, Code, Message string }

func (e ErrInvalid) Error() string { return "api: invalid " + e.Param + ": " + e.Message }

// ErrFailed: a sequence that was taken could not be finished. Code is the
// engine's own and stable.
type ErrFailed struct{ Code, Message string }

func (e ErrFailed) Error() string { return "cluster: " + e.Code + ": " + e.Message }

// Problem is an error that a package with routes of its own (see Server.Handle)
// words itself.
type Problem struct {
	Status               int
	Code, Param, Message string
	RetryAfter           time.Duration // > 0: sent as Retry-After
}

func (p Problem) Error() string { return p.Message }

func (p Problem) apiError() *apiError {
	e := &apiError{status: p.Status, typ: typeInvalid, code: p.Code, param: p.Param, message: p.Message, retryAfter: p.RetryAfter}
	switch {
	case p.Status == http.StatusTooManyRequests:
		e.typ = typeRateLimit
	case p.Status >= 500:
		e.typ = typeServer
		e.retryable = p.Status == http.StatusServiceUnavailable
	}
	return e
}

var (
	errShutdown       = errors.New("api: the server is shutting down")
	errRequestTimeout = errors.New("api: the request took longer than the server allows")
)

// statusLeft is nginx's status for a client that left.
const statusLeft = 499

// errLeft answers a client that closed its side of the connection before the answer was there.
var errLeft = &apiError{status: statusLeft, typ: typeInvalid, code: "client_closed_request", message: "The client closed the connection, or its side of it, before the answer was complete. Keep it open until the answer has come."}

// Error types of the OpenAI protocol.
const (
	typeInvalid    = "invalid_request_error"
	typeAuth       = "authentication_error"
	typePermission = "permission_error"
	typeRateLimit  = "rate_limit_error"
	typeServer     = "server_error"
)

// apiError is an error as a client sees it.
type apiError struct {
	status     int
	typ        string
	param      string
	code       string
	message    string
	retryAfter time.Duration // > 0: sent as Retry-After
	retryable  bool          // nothing was done, even if the request was accepted
	allow      string        // Allow header of a 405
}

func (e *apiError) Error() string { return e.message }

func (e *apiError) MarshalJSON() ([]byte, error) {
	body := errorBody{errorDetail{Message: e.message, Type: e.typ}}
	if e.param != "" {
		body.Error.Param = &e.param
	}
	if e.code != "" {
		body.Error.Code = &e.code
	}
	return json.Marshal(body)
}

type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func invalid(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, typ: typeInvalid, param: param, message: fmt.Sprintf(format, args...)}
}

func invalidCode(param, code, format string, args ...any) *apiError {
	e := invalid(param, format, args...)
	e.code = code
	return e
}

// asAPIError maps what the engine (or a context) says to what a client reads.
func asAPIError(err error) *apiError {
	var (
		api  *apiError
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
		return unavailable("overloaded", "The server is overloaded: "+cmp.Or(over.Reason, "the queue is full")+".", over.RetryAfter)
	case errors.As(err, &not):
		return unavailable("not_ready", "The server is not ready: "+cmp.Or(not.Reason, "loading")+".", not.RetryAfter)
	case errors.As(err, &long):
		return invalidCode("", "context_length_exceeded", "%s", long.Error())
	case errors.As(err, &inv):
		return invalidCode(inv.Param, inv.Code, "%s", inv.Message)
	case errors.As(err, &fail):
		return &apiError{status: http.StatusInternalServerError, typ: typeServer, code: fail.Code, message: fail.Message}
	case errors.As(err, &par):
		return invalid(par.Param, "'%s' %s.", par.Param, par.Message)
	case errors.Is(err, errShutdown):
		return unavailable("shutting_down", "The server is shutting down.", 0)
	case errors.Is(err, errRequestTimeout), errors.Is(err, context.DeadlineExceeded):
		return &apiError{status: http.StatusGatewayTimeout, typ: typeServer, code: "timeout", message: "The request took longer than the server allows."}
	}
	return &apiError{status: http.StatusInternalServerError, typ: typeServer, code: "engine_error", message: err.Error()}
}

func unavailable(code, message string, retry time.Duration) *apiError {
	if retry <= 0 {
		retry = time.Second
	}
	return &apiError{status: http.StatusServiceUnavailable, typ: typeServer, code: code, message: message, retryAfter: retry, retryable: true}
}

// ErrorStatus is the status and the body a client would get for err.
func ErrorStatus(err error) (status int, body json.RawMessage) {
	e := asAPIError(err)
	b, err := json.Marshal(e)
	if err != nil {
		return http.StatusInternalServerError, json.RawMessage(`{}`)
	}
	return e.status, b
}
