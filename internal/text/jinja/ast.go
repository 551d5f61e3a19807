package jinja

import "github.com/shoal-llm/shoal/internal/text/jinja/python"

// A template is parsed into functions, which rendering calls.
type (
	expr   func(in *interp, sc *scope) python.Value
	stmt   func(in *interp, sc *scope, out *python.Builder) signal
	target func(in *interp, v python.Value, sc *scope) // assigns to a target
)

// argList has the arguments of a call; star and starStar may be nil.
type argList struct {
	pos            []expr
	names          []string
	named          []expr
	star, starStar expr
}

// call is a call in a template. {% call %} adds an argument to it.
type call struct {
	fn   expr
	args argList
}

// slicing is a:b:c in an index; an omitted part is nil.
type slicing [3]expr

type macroDef struct {
	name     string
	params   []string
	defaults []expr // of the last len(defaults) parameters
	body     []stmt
	// Python's jinja2 passes surplus arguments only to macros that use these names.
	usesVarargs, usesKwargs, usesCaller bool
}

// piped evaluates to the text of a filter or set block, to which the block's filters are applied.
func piped(_ *interp, sc *scope) python.Value {
	v, _ := sc.get("")
	return v
}
