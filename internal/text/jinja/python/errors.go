package python

import (
	"errors"
	"fmt"
	"runtime"
)

// Causes of an Error, for errors.Is.
var (
	ErrSyntax   = errors.New("jinja: syntax error")
	ErrRaised   = errors.New("jinja: the template refused its input") // raise_exception
	ErrLimit    = errors.New("jinja: a limit was exceeded")
	ErrRuntime  = errors.New("jinja: the template failed") // Python would raise an exception
	ErrInternal = errors.New("jinja: internal error")      // a bug in this package
)

// Error is an error with its line in the template.
type Error struct {
	Line    int // from 1
	Message string
	Cause   error // one of the sentinels above
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: line %d: %s", e.Cause, e.Line, e.Message)
}

func (e *Error) Unwrap() error { return e.Cause }

// Catch is deferred. It turns the panic of a Meter or of a template into an error at a line. Inside
// packages python and jinja an *Error is a panic, as in text/template. With an error result from every
// operator the evaluator would be twice as long and harder to read. Catch also recovers from runtime
// errors, because a bug here must not crash a server.
func Catch(line *int, err *error) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		*err = r
	case runtime.Error:
		*err = &Error{*line, r.Error(), ErrInternal}
	default:
		panic(r)
	}
}
