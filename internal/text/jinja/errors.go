package jinja

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

// Inside the package an *Error travels as a panic, as in text/template: an
// evaluator in which every operator returned an error would be twice as long
// and hide its rules. catch is the one place where it becomes a returned error.
// A runtime error (a bug here) must not take a server down either.
func catch(line *int, err *error) {
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
