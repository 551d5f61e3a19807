package socket

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// beside runs what grammars work out while the layers compute. The socket owns it: close
// has what runs end with the call that it is in, each of which has its bound of steps, and
// waits.
type beside struct {
	runs  sync.WaitGroup
	ended atomic.Bool
}

func (b *beside) run(do func()) { b.runs.Go(do) }

func (b *beside) close() {
	b.ended.Store(true)
	b.runs.Wait()
}

// constraint is the state of a sequence's output under its grammar. It is a function of
// the output's tokens, so a sequence that is rebuilt or resumed comes to the same one. The
// executor's, but for what warm does.
type constraint struct {
	beside  *beside
	compile func() (*grammar.Grammar, error)
	tokens  []int32 // of the output
	done    int     // of these, how many newest has taken
	newest  grammar.State
	older   []older // states of before the last tokens
	err     error   // for good, unless what led to it is undone
	begun   int     // tokens of the output when newest was begun anew
}

type older struct {
	state grammar.State
	err   error
}

// keptStates bounds how many tokens can be undone at no cost; the state of more is found
// again from the beginning.
const keptStates = 32

var errNoGrammars = errors.New("socket: this process was given no vocabulary for grammars")

// newConstraint is nil without a grammar.
func newConstraint(b *beside, engine func() (*grammar.Engine, error), spec *grammar.Spec) *constraint {
	if spec == nil {
		return nil
	}
	c := &constraint{beside: b, compile: func() (*grammar.Grammar, error) {
		if engine == nil {
			return nil, errNoGrammars
		}
		e, err := engine()
		if err != nil {
			return nil, err
		}
		return e.Compile(*spec)
	}}
	b.run(func() { _, _ = c.compile() }) // in time for the first token; whoever asks sooner waits for it
	return c
}

func (c *constraint) feed(token int32) {
	if c != nil {
		c.tokens = append(c.tokens, token)
	}
}

// undo takes the newest token back.
func (c *constraint) undo() {
	if c == nil {
		return
	}
	c.tokens = c.tokens[:len(c.tokens)-1]
	if c.done <= len(c.tokens) {
		return
	}
	c.done--
	if n := len(c.older); n > 0 {
		c.newest, c.err = c.older[n-1].state, c.older[n-1].err
		c.older = c.older[:n-1]
		return
	}
	c.done, c.newest, c.err = 0, grammar.State{}, nil
}

// leastAnew are the fewest tokens after which a constraint begins anew.
const leastAnew = 64

// anew goes through all tokens again with a grammar that has learnt nothing yet, when the
// one that it shares with others nears its bounds. It does so again only after twice the
// tokens, so that the work is in proportion to them.
func (c *constraint) anew(err error) bool {
	if !c.newest.Crowded() && !errors.Is(err, grammar.ErrTooComplex) || len(c.tokens) < max(2*c.begun, leastAnew) {
		return false
	}
	c.begun, c.done, c.newest, c.err = len(c.tokens), 0, grammar.State{}, nil
	c.older = c.older[:0]
	return true
}

// state is that after all tokens.
func (c *constraint) state() (grammar.State, error) {
	s, err := c.advanced()
	if c.anew(err) {
		return c.advanced()
	}
	return s, err
}

func (c *constraint) advanced() (grammar.State, error) {
	if c.newest == (grammar.State{}) && c.err == nil {
		g, err := c.compile()
		if err != nil {
			return c.newest, err
		}
		c.newest, c.done = g.Start(), 0
	}
	for ; c.done < len(c.tokens); c.done++ {
		if len(c.older) == keptStates {
			c.older = append(c.older[:0], c.older[1:]...)
		}
		c.older = append(c.older, older{c.newest, c.err})
		if c.err == nil {
			c.newest, c.err = c.newest.Advance(c.tokens[c.done])
		}
	}
	return c.newest, c.err
}

// allowed are the tokens that may come next, 64 ids a word.
func (c *constraint) allowed() ([]uint64, error) {
	s, err := c.state()
	if err != nil {
		return nil, err
	}
	m, err := s.Mask()
	if err != nil && c.anew(err) {
		if s, err = c.advanced(); err == nil {
			m, err = s.Mask()
		}
	}
	if err != nil {
		return nil, err
	}
	return m.Words(), nil
}

// warm works out what a step will ask for once its tokens are known, while the layers run.
// What it finds stays with the grammar; whoever asks meanwhile waits for it there.
func (c *constraint) warm(tokens []int32) {
	if c == nil || c.newest == (grammar.State{}) {
		return
	}
	s, err := c.state()
	if err != nil {
		return
	}
	c.beside.run(func() {
		for _, t := range tokens {
			if c.beside.ended.Load() {
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
