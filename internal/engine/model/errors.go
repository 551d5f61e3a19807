package model

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of failure, for errors.Is.
var (
	ErrFormat       = errors.New("model: malformed checkpoint")       // bytes that are not what the format says
	ErrUnsupported  = errors.New("model: unsupported model")          // well formed, but nothing here computes it
	ErrChanged      = errors.New("model: file changed")               // after it was opened, or meanwhile
	ErrMissing      = errors.New("model: incomplete checkpoint")      // a file or a tensor is not there
	ErrMismatch     = errors.New("model: config and tensors differ")  // shapes or names contradict config.json
	ErrClosed       = errors.New("model: checkpoint is closed")       // Tensor after Close
	ErrOutOfRange   = errors.New("model: value out of range")         // a number no real model has
	ErrNotFinite    = errors.New("model: weight is not finite")       // NaN or Inf, found by Verify
	ErrUnknownArch  = errors.New("model: unknown architecture")       // also matches ErrUnsupported
	ErrNoCheckpoint = errors.New("model: no checkpoint in directory") // also matches ErrMissing
)

// Error is a failure at a place: a file, and a tensor of it or a field of it
// (either may be empty).
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
		fmt.Fprintf(&b, "tensor %q: ", clip(e.Tensor))
	}
	if e.Field != "" {
		fmt.Fprintf(&b, "field %q: ", clip(e.Field))
	}
	b.WriteString(e.Detail)
	return b.String()
}

// Is lets the two narrower kinds match the wider ones.
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

// maxProblems is how many findings an error prints before it only counts.
const maxProblems = 10

// Problems is every way in which one checkpoint fails its checks.
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

// clip keeps a name from a hostile file from filling a log line.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
