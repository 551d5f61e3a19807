package notation

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

type reader func(*regex.Store, string) (*Rules, error)

// TestRefused checks that the error of each language names the refused construct, with its line where
// it has one.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		read       reader
		text, want string
	}{
		{GBNF, "root ::= \"a\"\nx :: y", "GBNF, line 2: expected '::=' after \"x\""},
		{GBNF, "root ::= <tool>", "GBNF, line 1: tokens in a grammar ('<') are not supported"},
		{GBNF, "root ::= x", "GBNF: the rule \"root\" uses \"x\", which is not defined"},
		{GBNF, "x ::= \"a\"", "GBNF: there is no rule \"root\" to begin with"},
		{GBNF, "root ::= \"a\"\nroot ::= \"b\"", "GBNF: the rule \"root\" is defined twice"},
		{GBNF, "root ::= a\na ::= root \"x\" | \"y\"", "GBNF: left recursion through root, a, root: rewrite the rules"},
		{GBNF, "root ::= root \"a\"", "GBNF: every alternative of the rule \"root\" begins with itself"},
		{GBNF, "\xff", "GBNF: not valid UTF-8"},
		{Lark, "start: \"a\"\n%declare X", "Lark: line 2: the directive \"%declare X\" is not supported"},
		{Lark, "%llguidance {\"a\": 1}\nstart: \"a\"", "Lark: line 1: options of %llguidance are not supported"},
		{Lark, "start: X\nX: y\ny: \"a\"", "Lark: a terminal uses the rule \"y\""},
		{Lark, "start: X\nX: %json {}", "Lark: %json is allowed in rules only"},
		{Lark, "start: %json {", "Lark: line 1: expected JSON"},
		{Lark, "\xff", "Lark: not valid UTF-8"},
	} {
		if r, err := c.read(regex.NewStore(1000), c.text); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q gives %v, %v, want %s", c.text, r, err, c.want)
		}
	}
}

// TestLeftRecursion: a rule that starts with itself becomes a repetition of the rest of the rule.
func TestLeftRecursion(t *testing.T) {
	s := regex.NewStore(1000)
	r, err := GBNF(s, "root ::= root \"a\" | \"b\"")
	if err != nil {
		t.Fatal(err)
	}
	body := r.Body["root"]
	if body.Kind != Seq || len(body.List) != 2 || body.List[0].Kind != Alt || len(body.List[0].List) != 1 {
		t.Fatalf("%+v, want the other alternative and a repetition", body)
	}
	if rest := body.List[1]; rest.Kind != Repeat || rest.Lo != 0 || rest.Hi != -1 || rest.List[0].List[0].List[0].Lex != s.Literal("a") {
		t.Errorf("the rest is %+v, want \"a\" any number of times", rest)
	}
}

// TestSchemas: the JSON Schemas of a Lark grammar are kept with their lines.
func TestSchemas(t *testing.T) {
	r, err := Lark(regex.NewStore(1000), "%llguidance {}\nstart: x\nx: %json {\"type\": \"null\"} | \"a\"")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Names, []string{"start", "x"}) || r.Start != "start" || r.Before != regex.Epsilon {
		t.Errorf("%+v", r)
	}
	if p := r.Body["x"].List[0].List[0]; p.Kind != Schema || p.Schema != "{\"type\": \"null\"}" || p.Line != 3 {
		t.Errorf("%+v", p)
	}
}
