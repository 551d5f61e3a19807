package model

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of failure, for errors.Is.
var (
	ErrFormat       = errors.New("model: malformed checkpoint")       // bytes that violate the format
	ErrUnsupported  = errors.New("model: unsupported model")          // well formed, but not implemented
	ErrChanged      = errors.New("model: file changed")               // after or while it was opened
	ErrMissing      = errors.New("model: incomplete checkpoint")      // a file or a tensor is missing
	ErrMismatch     = errors.New("model: config and tensors differ")  // shapes or names contradict config.json
	ErrClosed       = errors.New("model: checkpoint is closed")       // Tensor after Close
	ErrOutOfRange   = errors.New("model: value out of range")         // a number that no real model has
	ErrNotFinite    = errors.New("model: weight is not finite")       // NaN or Inf, found by Verify
	ErrUnknownArch  = errors.New("model: unknown architecture")       // also matches ErrUnsupported
	ErrNoCheckpoint = errors.New("model: no checkpoint in directory") // also matches ErrMissing
)

// Error is an error at a place: a file, and a tensor or a field in it (either may be empty).
type Error struct {
	File   string // path as opened
	Tensor string
	Field  string
	Kind   error // one of the sentinels above
	Detail string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("model: ")
	if e.File != "" {
		b.WriteString(e.File + ": ")
	}
	if e.Tensor != "" {
		fmt.Fprintf(&b, "tensor %q: ", Clip(e.Tensor))
	}
	if e.Field != "" {
		fmt.Fprintf(&b, "field %q: ", Clip(e.Field))
	}
	b.WriteString(e.Detail)
	return b.String()
}

// Is makes the two narrower kinds match the wider ones.
func (e *Error) Is(target error) bool {
	switch {
	case target == e.Kind:
		return true
	case e.Kind == ErrUnknownArch:
		return target == ErrUnsupported
	case e.Kind == ErrNoCheckpoint:
		return target == ErrMissing
	}
	return false
}

// maxProblems is the number of findings that an error prints; it only counts the rest.
const maxProblems = 10

// Problems are all failed checks of one checkpoint.
type Problems struct {
	Dir  string
	List []error
}

func (p *Problems) Error() string {
	if len(p.List) == 1 {
		return p.List[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "model: %s: %d problems:", p.Dir, len(p.List))
	for i, err := range p.List {
		if i == maxProblems {
			fmt.Fprintf(&b, "\n  and %d more", len(p.List)-i)
			break
		}
		b.WriteString("\n  " + strings.TrimPrefix(err.Error(), "model: "))
	}
	return b.String()
}

func (p *Problems) Unwrap() []error { return p.List }

// Clip keeps a hostile file's names from flooding a log line.
func Clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// In returns the problems as an error, or nil if there are none.
func (p *Problems) In(dir string) error {
	if len(p.List) == 0 {
		return nil
	}
	p.Dir = dir
	return p
}
