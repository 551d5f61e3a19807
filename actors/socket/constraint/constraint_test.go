package constraint

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// A constraint is a function of the committed tokens: any number of undone tokens leaves no trace, and
// tokens that the grammar rejects can be undone.
func TestConstraintUndoes(t *testing.T) {
	v := grammar.NewVocabulary(256, func(id int32) []byte { return []byte{byte(id)} }, []int32{0})
	engine := grammar.NewEngine(v)
	var r Runner
	fresh := func() *Constraint {
		return New(&r, func() (*grammar.Engine, error) { return engine, nil }, &grammar.Spec{Kind: grammar.KindRegex, Text: "(ab|ac)*[0-9]{2}"})
	}
	feed := func(c *Constraint, text string) {
		for _, b := range []byte(text) {
			c.Feed(int32(b))
		}
	}
	for _, c := range []struct{ first, undone, then string }{
		{"", "", ""},
		{"ab", "a", "ac"},
		{"aba", "zzz", "b1"}, // tokens that the grammar rejects
		{"ab", "acacacacacacacacacacacacacacacacacacacacacacacac", "1"},
	} {
		got, want := fresh(), fresh()
		feed(got, c.first)
		if _, err := got.Allowed(); err != nil {
			t.Fatal(err)
		}
		for _, b := range []byte(c.undone) {
			got.Feed(int32(b))
			_, _ = got.Allowed() // also where a draft is rejected
		}
		for range c.undone {
			got.Undo()
		}
		feed(got, c.then)
		feed(want, c.first+c.then)
		g, err := got.Allowed()
		w, wrong := want.Allowed()
		if err != nil || wrong != nil || !slices.Equal(g, w) {
			t.Errorf("%+v: %v, want %v (%v, %v)", c, g, w, err, wrong)
		}
	}
	var none *Constraint
	none.Feed(1)
	none.Undo()
	none.Warm(nil)
	r.Close()
}

// A sequence leaves a shared grammar that is full. The set of its allowed tokens must not change.
func TestConstraintBeginsAnew(t *testing.T) {
	v := grammar.NewVocabulary(256, func(id int32) []byte { return []byte{byte(id)} }, []int32{0})
	engine := grammar.NewEngine(v)
	spec := &grammar.Spec{Kind: grammar.KindGBNF, Text: `root ::= "(" root ")" | "x"`}
	var r Runner
	defer r.Close()
	c := New(&r, func() (*grammar.Engine, error) { return engine, nil }, spec)
	for range minRebuild {
		c.Feed('(')
	}
	want, err := c.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	g, err := engine.Compile(*spec)
	if err != nil {
		t.Fatal(err)
	}
	other, many := g.Start(), bytes.Repeat([]byte("("), 1000)
	for i := 0; !other.NearLimit(); i++ {
		if i == 2000 {
			t.Fatal("the grammar does not fill")
		}
		if other, err = other.AdvanceBytes(many); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Mask(); err != nil {
			t.Fatal(err)
		}
	}
	if !c.newest.NearLimit() {
		t.Fatal("the grammar is not shared")
	}
	got, err := c.Allowed()
	if err != nil || !slices.Equal(got, want) || c.newest.NearLimit() || c.consumed != minRebuild {
		t.Errorf("%v, want %v; crowded %v, %d tokens: %v", got, want, c.newest.NearLimit(), c.consumed, err)
	}
}

// Grammar computations that run in parallel to the steps must end before their socket has ended.
func TestConstraintsEndWithTheirSocket(t *testing.T) {
	var r Runner
	started, proceed, ended := make(chan struct{}), make(chan struct{}), false
	New(&r, func() (*grammar.Engine, error) {
		close(started)
		<-proceed
		ended = true
		return nil, ErrNoGrammars
	}, &grammar.Spec{Kind: grammar.KindRegex, Text: "a"})
	<-started
	go close(proceed)
	r.Close()
	if !ended {
		t.Error("the socket ended before its grammars")
	}
}
