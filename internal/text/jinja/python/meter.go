package python

import "fmt"

// Limits bounds the cost of one rendering. Zero fields take their defaults.
type Limits struct {
	Steps  int // evaluated nodes, loop iterations, compared values; default 10 million
	Bytes  int // of all strings and lists created; default 256 MiB
	Output int // bytes of the result; default 64 MiB
	Depth  int // nesting of expressions, blocks, macros and values; default 1000
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.Steps, 10_000_000)
	set(&l.Bytes, 256<<20)
	set(&l.Output, 64<<20)
	set(&l.Depth, 1000)
	return l
}

// Meter counts the costs of one rendering, and ends it at its limits with a panic, see Catch.
type Meter struct {
	Limits              Limits
	Line                int // of the statement that runs
	steps, bytes, depth int
}

// NewMeter returns a meter with these limits.
func NewMeter(l Limits) *Meter { return &Meter{Limits: l.withDefaults()} }

// Fail ends the rendering as a Python exception would.
func (m *Meter) Fail(format string, a ...any) {
	panic(&Error{m.Line, fmt.Sprintf(format, a...), ErrRuntime})
}

// Exceed ends the rendering at a limit.
func (m *Meter) Exceed(what string, n int) {
	panic(&Error{m.Line, fmt.Sprintf("%s: at most %d", what, n), ErrLimit})
}

// Step charges n units of work.
func (m *Meter) Step(n int) {
	if m.steps += n; m.steps > m.Limits.Steps {
		m.Exceed("too many steps", m.Limits.Steps)
	}
}

// Scan charges a pass over a string.
func (m *Meter) Scan(s Str) { m.Step(len(s.Text) >> 8) }

// Charge accounts for n bytes before they are allocated.
func (m *Meter) Charge(n int) {
	if n < 0 || n > m.Limits.Bytes-m.bytes {
		m.Exceed("too many bytes of intermediate values", m.Limits.Bytes)
	}
	m.bytes += n
}

// Made charges a new string. The sizes of its inputs have bounded its size.
func (m *Meter) Made(s Str) Str {
	m.Charge(len(s.Text) + 16*len(s.Marks))
	return s
}

// Enter charges one step and one level of nesting, until Leave.
func (m *Meter) Enter() {
	m.Step(1)
	if m.depth++; m.depth > m.Limits.Depth {
		m.Exceed("nested too deeply", m.Limits.Depth)
	}
}

// Leave ends the level of nesting that Enter began.
func (m *Meter) Leave() { m.depth-- }
