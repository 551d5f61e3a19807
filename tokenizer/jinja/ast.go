package jinja

// Expressions.
type (
	expr interface{ at() int }
	pos  int // line

	constExpr struct {
		pos
		value Value
	}
	nameExpr struct {
		pos
		name string
	}
	listExpr struct {
		pos
		items []expr
		kind  listKind
	}
	dictExpr struct {
		pos
		keys, values []expr
	}
	attrExpr struct {
		pos
		of   expr
		name string
	}
	indexExpr struct {
		pos
		of, index expr
	}
	sliceExpr struct { // index only
		pos
		parts [3]expr // nil: left out
	}
	callExpr struct {
		pos
		fn   expr
		args argList
	}
	filterExpr struct {
		pos
		of   expr // nil: the text of a filter or set block
		name string
		args argList
	}
	testExpr struct {
		pos
		of   expr
		name string
		args argList
	}
	unaryExpr struct {
		pos
		op string // not + -
		of expr
	}
	binaryExpr struct {
		pos
		op          string // and or + - * / // % **
		left, right expr
	}
	concatExpr struct {
		pos
		items []expr
	}
	compareExpr struct {
		pos
		first expr
		ops   []string // == != < <= > >= in notin
		rest  []expr
	}
	condExpr struct {
		pos
		test, yes, no expr // no may be nil
	}
)

func (p pos) at() int { return int(p) }

// argList is what a call passes; star and starStar may be nil.
type argList struct {
	pos            []expr
	names          []string
	named          []expr
	star, starStar expr
}

// Statements.
type (
	stmt interface{}

	textStmt  struct{ text string }
	printStmt struct{ of expr }
	ifStmt    struct {
		tests  []expr
		bodies [][]stmt
		other  []stmt
	}
	forStmt struct {
		pos
		target      expr
		over        expr
		filter      expr // nil: all
		recursive   bool
		body, other []stmt
	}
	setStmt struct {
		pos
		target, value expr
	}
	setBlockStmt struct {
		pos
		target  expr
		filters expr // chain over the text, or nil
		body    []stmt
	}
	filterStmt struct {
		pos
		filters expr
		body    []stmt
	}
	macroStmt struct {
		pos
		macro *macroDef
	}
	callStmt struct {
		pos
		call   *callExpr
		caller *macroDef
	}
	withStmt struct {
		pos
		targets, values []expr
		body            []stmt
	}
	scopeStmt    struct{ body []stmt } // {% generation %}
	breakStmt    struct{}
	continueStmt struct{}
)

type macroDef struct {
	name     string
	params   []string
	defaults []expr // of the last len(defaults) parameters
	body     []stmt
	// Python's jinja2 passes surplus arguments only to macros that name these.
	usesVarargs, usesKwargs, usesCaller bool
}
