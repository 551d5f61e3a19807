package grammar

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/notation"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// Kinds of a Spec.
const (
	KindJSONSchema = "json_schema"
	KindJSONObject = "json_object"
	KindRegex      = "regex"
	KindChoice     = "choice" // Text is a JSON list of strings
	KindGBNF       = "gbnf"
	KindLark       = "lark"
	KindTags       = "structural_tag"
)

// Spec is the source of a grammar. It is comparable and portable between processes.
type Spec struct {
	Kind string
	Text string
	// Whitespace is a regular expression for white space between JSON tokens. The default "" allows
	// nothing, one space, or one or two line breaks and an indent.
	Whitespace string
	// Compact allows no white space between JSON tokens.
	Compact bool
	// AnyOrder allows properties in any order. Otherwise they follow the schema's order, with
	// undeclared members last.
	AnyOrder bool
	// Open allows members that the schema does not declare, as JSON Schema does. Otherwise a schema
	// with 'properties' and without 'additionalProperties' allows only its properties.
	Open bool
	// Thought is ThoughtBegun or ThoughtOptional to allow a thought before the text.
	Thought string
}

// Error describes an invalid or unsupported part of a grammar.
type Error struct {
	Where   string // in a schema: a JSON pointer that starts with '#'
	Keyword string // of a schema
	Message string
}

func (e *Error) Error() string {
	if e.Where == "" {
		return "grammar: " + e.Message
	}
	return "grammar: " + e.Where + ": " + e.Message
}

// ErrTooComplex: a grammar, or a text under it, needs more states than allowed.
var ErrTooComplex = errors.New("grammar: too complex")

// ErrToken: the grammar does not allow the token here.
var ErrToken = errors.New("grammar: the token does not fit")

const (
	maxSpec      = 4 << 20  // bytes of a Spec
	maxNodes     = 1 << 19  // states of the terminals of one grammar
	maxCompile   = 1 << 20  // derivatives during compilation: about a second
	maxWork      = 1 << 18  // derivatives for one token: other requests wait for it
	maxMachine   = 96 << 20 // approximate bytes of one grammar, above which it discards its states
	staleNodes   = maxNodes / 2
	keptGrammars = 256
	keptBytes    = 256 << 20 // approximate bytes of all cached grammars
)

// Engine compiles grammars for one vocabulary and caches the recently used ones. It is safe for
// concurrent use.
type Engine struct {
	vocab *Vocabulary

	mu    sync.Mutex
	known map[Spec]*list.Element
	order *list.List // of *entry, most recently used first

	relaxed      map[Spec]relaxed
	relaxedBytes int
}

type entry struct {
	spec Spec
	once sync.Once
	g    *Grammar
	err  error
}

// NewEngine returns an Engine without grammars.
func NewEngine(v *Vocabulary) *Engine {
	return &Engine{vocab: v, known: map[Spec]*list.Element{}, order: list.New(), relaxed: map[Spec]relaxed{}}
}

func (e *Engine) Vocabulary() *Vocabulary { return e.vocab }

// Compile returns the grammar of a Spec, compiling it if it is not cached. Errors: *Error,
// ErrTooComplex.
func (e *Engine) Compile(s Spec) (*Grammar, error) {
	e.mu.Lock()
	at := e.known[s]
	if at != nil && at.Value.(*entry).stale() {
		e.order.Remove(at)
		delete(e.known, s)
		at = nil
	}
	if at == nil {
		at = e.order.PushFront(&entry{spec: s})
		e.known[s] = at
		e.trim()
	} else {
		e.order.MoveToFront(at)
	}
	e.mu.Unlock()
	x := at.Value.(*entry)
	x.once.Do(func() {
		g, err := New(e.vocab, s)
		e.mu.Lock()
		x.g, x.err = g, err
		e.mu.Unlock()
	})
	return x.g, x.err
}

// stale reports whether the grammar has grown so much that it is better recompiled. Its current
// users continue with the old one.
func (x *entry) stale() bool {
	return x.g != nil && x.g.crowded()
}

func (e *Engine) trim() {
	total := int64(0)
	for at := e.order.Front(); at != nil; {
		next := at.Next()
		x := at.Value.(*entry)
		if x.g != nil {
			total += x.g.bytes.Load() + x.g.exprs.Load()
		}
		if at != e.order.Front() && (e.order.Len() > keptGrammars || total > keptBytes) {
			e.order.Remove(at)
			delete(e.known, x.spec)
		}
		at = next
	}
}

// Grammar is a compiled grammar. It is safe for concurrent use; calls are serialised.
type Grammar struct {
	vocab *Vocabulary
	mu    sync.Mutex
	m     *machine
	nodes atomic.Int64 // after the last use
	bytes atomic.Int64 // approximate, without those of exprs
	exprs atomic.Int64 // bytes of the expressions' keys and lists
	full  atomic.Bool  // expressions, their memory or frames are at half of their limit
}

// New compiles a grammar. Errors: *Error, ErrTooComplex.
func New(v *Vocabulary, s Spec) (*Grammar, error) {
	m := newMachine(maxNodes)
	return m.grammar(v, s)
}

func (m *machine) grammar(v *Vocabulary, s Spec) (g *Grammar, err error) {
	if len(s.Text) > maxSpec {
		return nil, &Error{Message: fmt.Sprintf("it has %d bytes, and may have %d", len(s.Text), maxSpec)}
	}
	defer recoverLarge(&err)
	m.Budget(maxCompile)
	top, err := attempt.At(func() exprID { return m.compile(s) })
	if err != nil {
		return nil, err
	}
	if s.Thought != "" {
		top = m.afterThought(s.Thought, top)
	}
	if !m.finish(top) {
		return nil, &Error{Message: "no text matches it: its parts exclude each other"}
	}
	if m.start.end && len(m.start.threads) == 0 {
		return nil, &Error{Message: "only the empty text fits it"}
	}
	g = &Grammar{vocab: v, m: m}
	g.publishSize()
	return g, nil
}

func recoverLarge(err *error) {
	switch p := recover().(type) {
	case nil:
	case regex.TooLarge:
		*err = fmt.Errorf("%w: %s", ErrTooComplex, p.What)
	default:
		panic(p)
	}
}

func refused(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: fmt.Errorf(format, args...)}
}

func (m *machine) compile(s Spec) exprID {
	switch s.Kind {
	case KindJSONSchema, KindJSONObject:
		return m.compileSchema(s)
	case KindRegex:
		r, err := m.Pattern(s.Text, "", regex.RawText(m.Store), true)
		if err != nil {
			panic(attempt.Failure{Err: &Error{Message: err.Error()}})
		}
		return m.lex(r)
	case KindChoice:
		return m.compileChoice(s.Text)
	case KindGBNF:
		r, err := notation.GBNF(m.Store, s.Text)
		return m.compileRules(s, "GBNF", r, err)
	case KindLark:
		r, err := notation.Lark(m.Store, s.Text)
		return m.compileRules(s, "Lark", r, err)
	case KindTags:
		return m.compileTags(s)
	}
	panic(attempt.Failure{Err: &Error{Message: fmt.Sprintf("the kind %.40q is not known", s.Kind)}})
}

// Annotations returns the places of keywords in a schema that have no effect, at most 64: unknown
// values of 'format'.
func (g *Grammar) Annotations() []string { return g.m.annotations }

// publishSize publishes the size of the grammar, so that the engine can read it without waiting for a mask
// computation.
func (g *Grammar) publishSize() {
	m := g.m
	g.nodes.Store(int64(m.Size()))
	g.exprs.Store(int64(m.Held()))
	g.bytes.Store(int64(m.held) + int64(m.Size())*192 + int64(len(m.frames))*48 + int64(len(m.exprs))*96 + int64(len(m.names))*48)
	g.full.Store(len(m.exprs) > maxExprs/2 || len(m.frames) > maxFrames/2 || m.Held() > regex.MaxHeld/2)
}

func (g *Grammar) crowded() bool {
	return g.full.Load() || g.nodes.Load() > staleNodes || g.bytes.Load() > maxMachine
}

// State is a position in a text under a grammar. It is a value: older states stay valid.
type State struct {
	g     *Grammar
	s     *state
	ended bool // an end token was drawn
}

// Start returns the state of the empty text.
func (g *Grammar) Start() State { return State{g: g, s: g.m.start} }

// Advance returns the state after a token. Errors: ErrToken, ErrTooComplex.
func (s State) Advance(token int32) (to State, err error) {
	for _, e := range s.g.vocab.eos {
		if e == token {
			if !s.s.end && !s.ended {
				return s, ErrToken
			}
			s.ended = true
			return s, nil
		}
	}
	mark, err := s.mark(token)
	switch {
	case err != nil:
		return s, err
	case mark != "":
		return s.AdvanceBytes([]byte(mark))
	}
	if s.ended || token < 0 || int(token) >= s.g.vocab.size || len(s.g.vocab.token[token]) == 0 {
		return s, ErrToken
	}
	return s.AdvanceBytes(s.g.vocab.token[token])
}

// mark returns the text that a control token represents in this state, or "".
func (s State) mark(token int32) (text string, err error) {
	if s.ended || s.g.vocab.marks[token] == "" {
		return "", nil
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	defer recoverLarge(&err)
	s.g.m.refuel()
	return s.g.m.mark(s.g.vocab, s.s, token), nil
}

// AdvanceBytes returns the state after some bytes.
func (s State) AdvanceBytes(b []byte) (to State, err error) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	defer recoverLarge(&err)
	s.g.m.refuel()
	at := s.s
	for _, c := range b {
		if at = s.g.m.advance(at, c); at == dead {
			return s, ErrToken
		}
	}
	return State{g: s.g, s: at}, nil
}

// NearLimit reports whether the stored states of the grammar are close to their limit. A long-lived
// user should then compile the grammar again and advance through the same text.
func (s State) NearLimit() bool { return s.g != nil && s.g.crowded() }

// Ends reports whether the text may end here.
func (s State) Ends() bool { return s.s.end || s.ended }

// Mask returns the set of allowed tokens. It belongs to the grammar. Error: ErrTooComplex.
func (s State) Mask() (mask *Mask, err error) {
	v := s.g.vocab
	if s.ended {
		mask = v.newMask()
		mask.eos = true
		for _, e := range v.eos {
			if e >= 0 && int(e) < v.size {
				mask.set(e)
			}
		}
		return mask, nil
	}
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	defer recoverLarge(&err)
	defer s.g.publishSize() // also at a limit
	s.g.m.refuel()
	if s.g.m.held > maxMachine {
		s.g.m.prune()
	}
	return s.g.m.maskOf(v, s.s), nil
}

// prune discards the data that can be recomputed: unreferenced states and their masks.
func (m *machine) prune() {
	for _, s := range m.states {
		s.mask, s.known, s.maybe = nil, nil, nil
		clear(s.next)
	}
	m.states, m.open, m.insides = map[string]*state{}, map[frameID]*opened{}, map[regex.ID]*inside{}
	m.held = 0
}

func (m *machine) refuel() {
	m.Budget(maxWork)
	m.opens = 0
}
