package jinja

import "github.com/shoal-llm/shoal/internal/text/jinja/python"

// Values and errors of package python, which callers of this package need.
type (
	Value  = python.Value
	Dict   = python.Dict
	List   = python.List
	Str    = python.Str
	Span   = python.Span
	Limits = python.Limits
	Error  = python.Error
)

// Causes of an Error, for errors.Is.
var (
	ErrSyntax   = python.ErrSyntax
	ErrRaised   = python.ErrRaised
	ErrLimit    = python.ErrLimit
	ErrRuntime  = python.ErrRuntime
	ErrInternal = python.ErrInternal
)

// NewDict returns an empty dict.
func NewDict() *Dict { return python.NewDict() }

// NewList returns a list of values.
func NewList(items ...Value) *List { return python.NewList(items...) }

// Trusted returns text of the template or the model.
func Trusted(s string) Str { return python.Trusted(s) }

// Literal returns text of a request, whose bytes are marked.
func Literal(s string) Str { return python.Literal(s) }

// DecodeJSON decodes one JSON document, see python.DecodeJSON.
func DecodeJSON(data []byte, literal bool) (Value, error) { return python.DecodeJSON(data, literal) }
