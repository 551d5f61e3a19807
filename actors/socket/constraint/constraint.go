// Package constraint tracks which tokens a request's grammar allows next, while tokens of the output
// are added and undone.
package constraint

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// Runner runs grammar computations in parallel to the layers. The socket owns it. Close makes each
// computation end after its current call, which has a bounded number of steps, and waits for all.
type Runner struct {
	runs  sync.WaitGroup
	ended atomic.Bool
}

func (r *Runner) run(do func()) { r.runs.Go(do) }

// Close ends the computations. No Constraint may start another.
func (r *Runner) Close() {
	r.ended.Store(true)
	r.runs.Wait()
}

// Constraint is the state of a sequence's output under its grammar. It is a function of the output's
// tokens, so a rebuilt or resumed sequence gets the same state. Only the executor uses it, except
// for the goroutines of Warm.
type Constraint struct {
	runner     *Runner
	compile    func() (*grammar.Grammar, error)
	tokens     []int32 // tokens of the output
	consumed   int     // number of tokens that newest has consumed
	newest     grammar.State
	undoStates []undoState // states before the last tokens
	err        error       // permanent, unless the tokens that caused it are undone
	rebuiltAt  int         // number of tokens when newest was last rebuilt
}

type undoState struct {
	state grammar.State
	err   error
}

// maxUndo is the number of tokens that can be undone without recomputation. To undo more, the
// state is computed again from the beginning.
const maxUndo = 32

// ErrNoGrammars reports that this process cannot compile grammars.
var ErrNoGrammars = errors.New("socket: a request has a grammar, but this process has no vocabulary for grammars")

// New returns the constraint of an output that has no tokens yet, or nil without a grammar. engine
// returns the engine of the vocabulary; nil: this process has none.
func New(r *Runner, engine func() (*grammar.Engine, error), spec *grammar.Spec) *Constraint {
	if spec == nil {
		return nil
	}
	c := &Constraint{runner: r, compile: func() (*grammar.Grammar, error) {
		if engine == nil {
			return nil, ErrNoGrammars
		}
		e, err := engine()
		if err != nil {
			return nil, err
		}
		return e.Compile(*spec)
	}}
	r.run(func() { _, _ = c.compile() }) // so that the grammar is ready for the first token; earlier callers wait for it
	return c
}

// Feed appends a token of the output. Methods of a nil Constraint do nothing.
func (c *Constraint) Feed(token int32) {
	if c != nil {
		c.tokens = append(c.tokens, token)
	}
}

// Undo removes the newest token.
func (c *Constraint) Undo() {
	if c == nil {
		return
	}
	c.tokens = c.tokens[:len(c.tokens)-1]
	if c.consumed <= len(c.tokens) {
		return
	}
	c.consumed--
	if n := len(c.undoStates); n > 0 {
		c.newest, c.err = c.undoStates[n-1].state, c.undoStates[n-1].err
		c.undoStates = c.undoStates[:n-1]
		return
	}
	c.consumed, c.newest, c.err = 0, grammar.State{}, nil
}

// minRebuild is the minimum number of tokens before a constraint is rebuilt.
const minRebuild = 64

// rebuild recomputes the state from all tokens with an empty grammar cache, when the grammar that
// it shares with other sequences is close to its limits. It rebuilds again only after the number of
// tokens has doubled, so that the total work is linear in the tokens.
func (c *Constraint) rebuild(err error) bool {
	if !c.newest.NearLimit() && !errors.Is(err, grammar.ErrTooComplex) || len(c.tokens) < max(2*c.rebuiltAt, minRebuild) {
		return false
	}
	c.rebuiltAt, c.consumed, c.newest, c.err = len(c.tokens), 0, grammar.State{}, nil
	c.undoStates = c.undoStates[:0]
	return true
}

// state returns the state after all tokens.
func (c *Constraint) state() (grammar.State, error) {
	s, err := c.advanced()
	if c.rebuild(err) {
		return c.advanced()
	}
	return s, err
}

func (c *Constraint) advanced() (grammar.State, error) {
	if c.newest == (grammar.State{}) && c.err == nil {
		g, err := c.compile()
		if err != nil {
			return c.newest, err
		}
		c.newest, c.consumed = g.Start(), 0
	}
	for ; c.consumed < len(c.tokens); c.consumed++ {
		if len(c.undoStates) == maxUndo {
			c.undoStates = append(c.undoStates[:0], c.undoStates[1:]...)
		}
		c.undoStates = append(c.undoStates, undoState{c.newest, c.err})
		if c.err == nil {
			c.newest, c.err = c.newest.Advance(c.tokens[c.consumed])
		}
	}
	return c.newest, c.err
}

// Allowed returns the set of tokens that may come next, 64 ids per word.
func (c *Constraint) Allowed() ([]uint64, error) {
	s, err := c.state()
	if err != nil {
		return nil, err
	}
	m, err := s.Mask()
	if err != nil && c.rebuild(err) {
		if s, err = c.advanced(); err == nil {
			m, err = s.Mask()
		}
	}
	if err != nil {
		return nil, err
	}
	return m.Words(), nil
}

// Warm computes the mask of the next step, after the given tokens, while the layers run. The grammar
// caches the result. A caller that needs it earlier waits for it there.
func (c *Constraint) Warm(tokens []int32) {
	if c == nil || c.newest == (grammar.State{}) {
		return
	}
	s, err := c.state()
	if err != nil {
		return
	}
	c.runner.run(func() {
		for _, t := range tokens {
			if c.runner.ended.Load() {
				return
			}
			if s, err = s.Advance(int32(t)); err != nil {
				return
			}
			if _, err = s.Mask(); err != nil {
				return
			}
		}
	})
}
