package gguf

import (
	"errors"
	"fmt"
)

// Kinds of failure, for errors.Is.
var (
	ErrFormat      = errors.New("gguf: malformed file")     // it violates the format
	ErrUnsupported = errors.New("gguf: unsupported file")   // well formed, but not supported
	ErrValue       = errors.New("gguf: unusable metadata")  // a value of the wrong type, or out of range
	ErrNotFound    = errors.New("gguf: no such file")       // neither a file nor a folder with one
	ErrAmbiguous   = errors.New("gguf: several files")      // a folder with several models
	ErrPart        = errors.New("gguf: missing part")       // of a model that is split into files
	errTruncated   = errors.New("truncated")                // while parsing
	errLong        = errors.New("header longer than bound") // while parsing
)

// Error is an error in a file, perhaps at a metadata key or a tensor (either may be empty).
type Error struct {
	Path   string
	Key    string
	Tensor string
	Kind   error // one of the sentinels above
	Detail string
}

func (e *Error) Error() string {
	s := "gguf: "
	if e.Path != "" {
		s += e.Path + ": "
	}
	if e.Key != "" {
		s += fmt.Sprintf("metadata %q: ", clip(e.Key))
	}
	if e.Tensor != "" {
		s += fmt.Sprintf("tensor %q: ", clip(e.Tensor))
	}
	return s + e.Detail
}

func (e *Error) Unwrap() error { return e.Kind }

// clip keeps a hostile file's names from flooding a log line.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
