package jinja

// What a template is parsed into: functions that a rendering calls.
type (
	expr   func(in *interp, sc *scope) Value
	stmt   func(in *interp, sc *scope, out *builder) signal
	target func(in *interp, v Value, sc *scope) // assigns
)

// argList is what a call passes; star and starStar may be nil.
type argList struct {
	pos            []expr
	names          []string
	named          []expr
	star, starStar expr
}

// call is a call in a template, which {% call %} adds an argument to.
type call struct {
	fn   expr
	args argList
}

// slicing is a:b:c in an index; nil: left out.
type slicing [3]expr

type macroDef struct {
	name     string
	params   []string
	defaults []expr // of the last len(defaults) parameters
	body     []stmt
	// Python's jinja2 passes surplus arguments only to macros that name these.
	usesVarargs, usesKwargs, usesCaller bool
}

// piped is the text of a filter or set block, to which its filters are applied.
func piped(_ *interp, sc *scope) Value {
	v, _ := sc.get("")
	return v
}
