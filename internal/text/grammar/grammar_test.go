package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// words returns a small vocabulary: all bytes, and longer pieces of JSON and text.
func words(t testing.TB) *Vocabulary {
	t.Helper()
	var list []string
	for b := range 256 {
		list = append(list, string([]byte{byte(b)}))
	}
	list = append(list, `{"`, `":`, `": "`, `", "`, `"}`, `"]`, "true", "false", "null", " true", "12", "345", "0.", "ab", "abc", " abc", "hello", "\n\n", "    ", `\"`, `\n`, `\u00`, "é", "日", "日本", "\xe6\x97", "}]", "},", "],", `"a"`, `"b":`, "<tool", "<tool>", "abab", "ab", `":1,"`, `":1,"a":`, `a":true,"b`, `,"a":1`, `{"a":{"a":1,"`, `":1}`, "longer than sixteen characters it is")
	list = append(list, "", "") // control tokens; the last one is the end token
	return NewVocabulary(len(list), func(id int32) []byte { return []byte(list[id]) }, []int32{int32(len(list) - 1)})
}

func accepts(t testing.TB, g *Grammar, text string) bool {
	t.Helper()
	s, err := g.Start().AdvanceBytes([]byte(text))
	if err != nil && !errors.Is(err, ErrToken) {
		t.Fatalf("%q: %v", text, err)
	}
	return err == nil && s.Ends()
}

func compiled(t testing.TB, kind, text string) *Grammar {
	t.Helper()
	g, err := New(words(t), Spec{Kind: kind, Text: text})
	if err != nil {
		t.Fatalf("%s %.200q: %v", kind, text, err)
	}
	return g
}

// Regular expressions match the same texts as Go's own engine.
func TestRegexLikeGo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var pattern func(depth int) string
	pattern = func(depth int) string {
		if depth == 0 {
			return []string{"a", "b", "c", ".", "[ab]", "[^a]", `\d`, "é", "", `\w`, "日"}[r.IntN(11)]
		}
		switch r.IntN(7) {
		case 0:
			return "(" + pattern(depth-1) + "|" + pattern(depth-1) + ")"
		case 1:
			return "(?:" + pattern(depth-1) + ")" + []string{"*", "+", "?", "{2}", "{1,3}", "{2,}"}[r.IntN(6)]
		}
		return pattern(depth-1) + pattern(depth-1)
	}
	letters := []rune("abc1é日\n\"")
	for range 600 {
		p := pattern(4)
		theirs, err := regexp.Compile("^(?:" + p + ")$")
		if err != nil {
			t.Fatal(err)
		}
		g, err := New(words(t), Spec{Kind: KindRegex, Text: p})
		if err != nil {
			t.Fatalf("%q: %v", p, err)
		}
		for range 60 {
			var s []rune
			for range r.IntN(7) {
				s = append(s, letters[r.IntN(len(letters))])
			}
			if got, want := accepts(t, g, string(s)), theirs.MatchString(string(s)); got != want {
				t.Fatalf("%q on %q: %v, want %v", p, string(s), got, want)
			}
		}
	}
}

// The mask of every state allows exactly the tokens that advance it.
func TestMaskEqualsAdvance(t *testing.T) {
	v := words(t)
	for _, s := range []Spec{
		{Kind: KindJSONObject},
		{Kind: KindJSONSchema, Text: `{"type":"object","properties":{"a":{"type":"string","maxLength":5},"b":{"type":"array","items":{"type":"integer","minimum":3,"maximum":3450}}},"required":["b"]}`},
		{Kind: KindJSONSchema, Text: `{"type":"object","additionalProperties":{"anyOf":[{"type":"string","pattern":"^[a-z]+$"},{"type":"number"}]},"properties":{"ab":true}}`},
		{Kind: KindJSONSchema, AnyOrder: true, Text: `{"properties":{"a":{"type":"null"},"b":{"type":"integer"},"ab":{"enum":["abc"]}},"required":["b","a"],"minProperties":3,"maxProperties":4,"type":"object"}`},
		{Kind: KindJSONSchema, Text: `{"type":"object","propertyNames":{"enum":["a","b","ab"]},"additionalProperties":{"type":"integer"},"minProperties":2}`},
		{Kind: KindJSONSchema, AnyOrder: true, Text: `{"type":"object","properties":{"b":{"type":"integer"}},"patternProperties":{"^[ab]{1,2}$":{"type":["integer","boolean","object"]}},"minProperties":4}`},
		{Kind: KindRegex, Text: `(ab|abc)*[0-9]{1,4}( true)?.*`},
		{Kind: KindChoice, Text: `["ab","abc","hello"]`},
		{Kind: KindGBNF, Text: "root ::= \"(\" root \")\" | [a-c]+ | root2*\nroot2 ::= \"12\" root"},
		{Kind: KindTags, Text: `{"triggers":["<tool"],"structures":[{"begin":"<tool>","schema":{"type":"boolean"},"end":"</tool>"}]}`},
	} {
		g, err := New(v, s)
		if err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		r := rand.New(rand.NewPCG(3, 4))
		for range 12 {
			at := g.Start()
			for range 25 {
				mask, err := at.Mask()
				if err != nil {
					t.Fatal(err)
				}
				var good []int32
				for id := range int32(v.Size()) {
					_, err := at.Advance(id)
					if (err == nil) != mask.Has(id) {
						t.Fatalf("%v: token %d %q: mask %v, state %v", s, id, v.token[id], mask.Has(id), err)
					}
					if err == nil {
						good = append(good, id)
					}
				}
				if len(good) == 0 {
					t.Fatalf("%v: a state without a way on", s)
				}
				if at, err = at.Advance(good[r.IntN(len(good))]); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// An older state stays unchanged, and the same text gives the same state.
func TestStatesAreValues(t *testing.T) {
	g := compiled(t, KindJSONObject, "")
	old := g.Start()
	one, err := old.AdvanceBytes([]byte(`{"a": [1, {"b`))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := one.Mask()
	copied := slices.Clone(before.Words())
	if _, err := one.AdvanceBytes([]byte(`": null}]}`)); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.m.prune() // prune drops caches, not states in use
	g.mu.Unlock()
	again, _ := one.Mask()
	if !slices.Equal(again.Words(), copied) {
		t.Error("the mask of a state changed")
	}
	two, err := old.AdvanceBytes([]byte(`{"a": [1, {"b`))
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := two.Mask(); !slices.Equal(again.Words(), copied) {
		t.Error("the same text came to another state")
	}
	if _, err := old.Advance(int32(g.vocab.size - 1)); !errors.Is(err, ErrToken) {
		t.Error("an end was taken where the text may not end")
	}
}

func TestGrammars(t *testing.T) {
	for _, c := range []struct {
		kind, text string
		yes, no    []string
	}{
		{KindChoice, `["yes","no"]`, []string{"yes", "no"}, []string{"", "y", "yesno"}},
		{KindRegex, `(?i)ab+c`, []string{"abc", "ABBC"}, []string{"ac"}},
		{KindRegex, `(?i:a)b|c`, []string{"Ab", "ab", "c"}, []string{"aB", "AB", "C"}},
		{KindRegex, `((?i)a|b)c(?s:.)(?i:d(?-i:e))`, []string{"Bc\nDe", "acxde"}, []string{"aC\nde", "acxdE"}},
		{KindRegex, `(?x:a b) c`, []string{"ab c"}, []string{"abc", "a b c"}},
		{KindRegex, "(?x) a # one of (many\n [ #] \\# # end", []string{"a #", "a##"}, []string{"a#", "a # one"}},
		{KindRegex, `[\d\-a]{2,3}`, []string{"1-", "aaa"}, []string{"1", "1111"}},
		{KindRegex, `\p{Lu}\x41\u0042`, []string{"ÉAB"}, []string{"éAB"}},
		{KindRegex, `^(a|b$)`, []string{"a", "b"}, []string{"ab"}},
		{KindRegex, `(?!foo)[a-z]+`, []string{"fo", "bar"}, []string{"foo", "foobar"}},
		{KindRegex, `(?=.*\d)[a-z\d]+`, []string{"a1"}, []string{"ab"}},
		{KindGBNF, "root ::= expr # comment\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
			[]string{"1+2", "(1-(2))+3"}, []string{"1+", "()", ""}},
		{KindGBNF, "root ::= \"a\"{2,3} |\n  [^a-z\\n]", []string{"aa", "aaa", "日"}, []string{"a", "b", "\n"}},
		{KindGBNF, "root ::= root \"a\" | \"b\"", []string{"b", "baa"}, []string{"a", ""}},
		{KindLark, "start: expr\nexpr: expr \"+\" NUMBER | NUMBER\nNUMBER: /[0-9]+/\n%ignore / +/",
			[]string{"1+2", " 1 + 22 "}, []string{"1 2", "+"}},
		{KindLark, "%import common.(INT, WS)\nstart: \"x\"i INT ~ 1..2 [\"!\"]\n%ignore WS", []string{"X1", "x 1 2 !"}, []string{"x", "1"}},
		{KindLark, "start: \"f(\" %json {\"type\":\"integer\"} \")\" | \"a\"..\"c\"", []string{"f(12)", "b"}, []string{"f(a)", "d"}},
		{KindLark, "start: (\"<t>\" %until \"</t>\")? %json {\"type\":\"integer\"}", []string{"1", "<t>a<t></</t>12"},
			[]string{"<t>a", "<t></t>x</t>1", "x"}},
		{KindTags, `{"triggers":["<f="],"structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"}]}`,
			[]string{"", "free text", "say <f=a>12</f> and <f=a>3</f>.", "<f"}, []string{"<f=b>", "<f=a>x</f>", "<f=a>1"}},
	} {
		g := compiled(t, c.kind, c.text)
		for _, s := range c.yes {
			if !accepts(t, g, s) {
				t.Errorf("%s %q refuses %q", c.kind, c.text, s)
			}
		}
		for _, s := range c.no {
			if accepts(t, g, s) {
				t.Errorf("%s %q takes %q", c.kind, c.text, s)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ kind, text, want string }{
		{KindJSONSchema, `{"type":"array","uniqueItems":true}`, "#/uniqueItems"},
		{KindJSONSchema, `{"properties":{"a":{"type":"string","required":true}}}`, "#/properties/a/required"},
		{KindJSONSchema, `{"required":null}`, "#/required"},
		{KindJSONSchema, `{"type":"object","required":["a",1]}`, "#/required"},
		{KindJSONSchema, `{"$ref":"http://elsewhere/x"}`, "not in this schema"},
		{KindJSONSchema, `{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "no text matches"},
		{KindJSONSchema, `{"type":"string","pattern":"(a)\\1"}`, "back references"},
		{KindJSONSchema, `{"type":"integer","minimum":5,"maximum":4}`, "no text matches"},
		{KindJSONSchema, `{"type":"strin"}`, "not a type"},
		{KindJSONSchema, `{"allOf":[{"$ref":"#"}]}`, ""},
		{KindJSONSchema, `nope`, "not JSON"},
		{KindRegex, `a\b`, "word boundaries"},
		{KindRegex, `(a`, "does not end"},
		{KindGBNF, "root ::= a\na ::= b\nb ::= a \"x\" | \"y\"", "left recursion through a, b, a"},
		{KindGBNF, "root ::= x", "not defined"},
		{KindGBNF, "x ::= \"a\"", "no rule \"root\""},
		{KindLark, "start: A\nA: B\nB: A", "uses itself"},
		{KindLark, "start: a[x]", "not defined"},
		{KindLark, "\nstart: %json " + strings.Repeat("[", 500) + strings.Repeat("]", 500), "Lark: line 2: JSON nested deeper"},
		{KindChoice, `[]`, "one at least"},
		{"else", "", "not known"},
	} {
		_, err := New(&Vocabulary{}, Spec{Kind: c.kind, Text: c.text})
		if c.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: error %v, want one with %q", c.kind, c.text, err, c.want)
		}
	}
}

// Pathological inputs end within their limits.
func TestPathological(t *testing.T) {
	for _, c := range []struct{ kind, text string }{
		{KindRegex, strings.Repeat("(a*", 150) + strings.Repeat(")*", 150)},
		{KindRegex, "(a|b)*a(a|b){20000}c"},
		{KindRegex, `(?=(a|b)*a(a|b){16}$)(?=(a|b)*b(a|b){15}$)(?!(a|b)*a(a|b){13}$)[ab]*`},
		{KindJSONSchema, `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"anyOf":[{"minimum":1},{"minimum":2},{"maximum":3}]},`, 12), ",") + `]}`},
		{KindJSONSchema, `{"type":"object","minProperties":500000,"properties":{"a":true,"b":true}}`},
		{KindJSONSchema, `{"multipleOf":1000003,"type":"integer","minimum":1000004,"maximum":2000005}`},
		{KindJSONSchema, `{"type":"string","minLength":1000000,"pattern":"^(a|b)*a(a|b){14}$"}`},
		{KindGBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\""},
		{KindGBNF, "root ::= (\"a\" | \"a\" root)* root?" + strings.Repeat(" \"a\"?", 500)},
	} {
		began := time.Now()
		g, err := New(words(t), Spec{Kind: c.kind, Text: c.text})
		if err == nil {
			at := g.Start()
			for range 40 {
				if at, err = at.AdvanceBytes([]byte("a")); err != nil {
					break
				}
				if _, err = at.Mask(); err != nil {
					break
				}
			}
		}
		var known *Error
		if err != nil && !errors.Is(err, ErrTooComplex) && !errors.Is(err, ErrToken) && !errors.As(err, &known) {
			t.Errorf("%s %.60q: %v", c.kind, c.text, err)
		}
		if d := time.Since(began); d > 60*time.Second {
			t.Errorf("%s %.60q took %v", c.kind, c.text, d)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "write testdata/refused.txt again")

// The official suite: no invalid instance is accepted. The refused schemas and instances are the
// listed ones.
func TestJSONSchemaTestSuite(t *testing.T) {
	files, err := filepath.Glob("testdata/json-schema-test-suite/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no tests", err)
	}
	v := words(t)
	var refused []string
	good, anyway := 0, 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var groups []struct {
			Description string
			Schema      json.RawMessage
			Tests       []struct {
				Description string
				Data        json.RawMessage
				Valid       bool
			}
		}
		if err := json.Unmarshal(data, &groups); err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			where := strings.TrimSuffix(filepath.Base(f), ".json") + ": " + g.Description
			c, err := New(v, Spec{Kind: KindJSONSchema, Text: string(g.Schema), Open: true})
			free, wrong := New(v, Spec{Kind: KindJSONSchema, Text: string(g.Schema), Open: true, AnyOrder: true})
			closed, also := New(v, Spec{Kind: KindJSONSchema, Text: string(g.Schema)})
			if (err == nil) != (wrong == nil) || (err == nil) != (also == nil) {
				t.Errorf("%s: %v in the schema's order, %v in any, %v of declared names", where, err, wrong, also)
			}
			if err != nil {
				if slices.ContainsFunc(g.Tests, func(c struct {
					Description string
					Data        json.RawMessage
					Valid       bool
				}) bool {
					return c.Valid
				}) {
					refused = append(refused, "schema "+where+": "+strings.TrimPrefix(err.Error(), "grammar: "))
				}
				continue
			}
			for _, x := range g.Tests {
				var text bytes.Buffer
				if err := json.Compact(&text, x.Data); err != nil {
					t.Fatal(err)
				}
				got := accepts(t, c, text.String())
				if any := accepts(t, free, text.String()); got && !any || any && !x.Valid {
					t.Errorf("%s: %s: in any order %v, in the schema's %v", where, x.Description, any, got)
				} else if !any && x.Valid {
					anyway++
				}
				if accepts(t, closed, text.String()) && !got {
					t.Errorf("%s: %s: of declared names alone, %s passes", where, x.Description, text.String())
				}
				switch {
				case got && !x.Valid:
					t.Errorf("%s: %s: lets %s through", where, x.Description, text.String())
				case !got && x.Valid:
					refused = append(refused, fmt.Sprintf("value  %s: %s: %.80s", where, x.Description, text.String()))
				default:
					good++
				}
			}
		}
	}
	text := strings.Join(refused, "\n") + "\n"
	if *rewrite {
		if err := os.WriteFile("testdata/refused.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/refused.txt")
	if err != nil || string(want) != text {
		t.Errorf("testdata/refused.txt (%v) differs from the refused schemas; -rewrite writes it:\n%s", err, text)
	}
	t.Logf("%d instances judged right, %d schemas or values refused; %d values in any order", good, len(refused), anyway)
}

func TestAnyOrder(t *testing.T) {
	g, err := New(words(t), Spec{Kind: KindJSONSchema, AnyOrder: true, Text: `{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":false},"required":["b"],"maxProperties":3,"additionalProperties":{"type":"integer"}}`})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{`{"a":null,"b":null}`: true, `{"b":null,"a":null}`: true, `{"x":1,"b":null,"a":null}`: true, `{"b":null}`: true,
		`{"a":null}`: false, `{"b":null,"b":null}`: false, `{"b":null,"c":null}`: false, `{"b":null,"x":null}`: false, `{"a":null,"b":null,"x":1,"y":1}`: false, `{}`: false} {
		if got := accepts(t, g, text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if _, err := New(&Vocabulary{}, Spec{Kind: KindJSONSchema, AnyOrder: true, Text: `{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`}); err == nil {
		t.Error("a schema that no text fits was taken")
	}
}

// One engine and one grammar can be used concurrently.
func TestEngineIsShared(t *testing.T) {
	e := NewEngine(words(t))
	done := make(chan error)
	for i := range 16 {
		go func() {
			done <- func() error {
				g, err := e.Compile(Spec{Kind: KindJSONSchema, Text: fmt.Sprintf(`{"type":"object","properties":{"a":{"type":"string","maxLength":%d}}}`, i%3)})
				if err != nil {
					return err
				}
				r, at := rand.New(rand.NewPCG(uint64(i), 1)), g.Start()
				for range 60 {
					m, err := at.Mask()
					if err != nil {
						return err
					}
					id := int32(r.IntN(e.Vocabulary().Size()))
					if next, err := at.Advance(id); (err == nil) != m.Has(id) {
						return fmt.Errorf("token %d: mask %v, state %v", id, m.Has(id), err)
					} else if err == nil {
						at = next
					}
				}
				return nil
			}()
		}()
	}
	for range 16 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
