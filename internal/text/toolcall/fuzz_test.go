package toolcall

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// judge parses an answer as a whole and in pieces of n bytes. Both must agree, and the arguments of
// every call must be a JSON object, unless the answer was cut.
func judge(t *testing.T, f Family, text string, n int, cut bool) {
	t.Helper()
	p := New(f, known)
	all := append(p.Push(text), p.Flush(cut)...)
	want := render(all)
	if open := p.Open(); !cut || !open {
		var args []string
		for _, x := range all {
			if x.Call != nil {
				args = append(args, x.Call.Arguments)
			}
			if x.Arguments != "" {
				args[len(args)-1] += x.Arguments
			}
		}
		for _, a := range args {
			if !json.Valid([]byte(a)) || a[0] != '{' {
				t.Fatalf("%s %q (cut: %v): the arguments %q are not an object", f, text, cut, a)
			}
		}
	}
	p = New(f, known)
	var pieces []Piece
	for rest := text; rest != ""; {
		k := min(n, len(rest))
		pieces = append(pieces, p.Push(rest[:k])...)
		rest = rest[k:]
	}
	if got := render(append(pieces, p.Flush(cut)...)); got != want {
		t.Fatalf("%s %q (cut: %v) by %d:\n%s\nwhole\n%s", f, text, cut, n, got, want)
	}
}

func FuzzParser(f *testing.F) {
	for i := range Families {
		f.Add(uint8(i), `<tool_call>{"name":"f","arguments":{}}</tool_call>[f(a=1)]`, uint8(3), false)
		f.Add(uint8(i), `[TOOL_CALLS]f[ARGS]{"a":1}`, uint8(1), true)
		f.Add(uint8(i), `<|tool_call>call:f{a:<|"|>x<|"|>,b:[1,{c:d}]}<tool_call|>`, uint8(2), false)
		f.Add(uint8(i), `<|channel|>analysis<|message|>x<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a":1}<|call|>`, uint8(2), false)
		f.Add(uint8(i), "<function=f>\n<parameter=a>\n1\n</function>", uint8(2), false)
	}
	f.Fuzz(func(t *testing.T, family uint8, text string, n uint8, cut bool) {
		judge(t, Families[int(family)%len(Families)], text, int(n)+1, cut)
		whole, answer := spansOf(text, len(text)+1)
		if pieces, same := spansOf(text, int(n)+1); whole != text || pieces != text || same != answer {
			t.Fatalf("%q: the spans are %q; in pieces of %d %q, answers %q and %q", text, whole, int(n)+1, pieces, answer, same)
		}
	})
}

// scraps are parts of answers with calls, valid and broken.
var scraps = append(strings.Split(`<tool_call>|</tool_call>|<function=f>|<function=h>|</function>|<parameter=a>|<parameter=b>|</parameter>|<parameter name="c">|`+
	`[TOOL_CALLS]|[ARGS]|[CALL_ID]x|f|g|[f(a=1, b='x')]|f(|)|<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>|<｜tool▁sep｜>|<｜tool▁call▁end｜>|<｜tool▁calls▁end｜>|`+
	`{"name": "f", "arguments": |{"name": "f", "parameters": |{"arguments": |, "name": "f"}|{'name': 'f', 'arguments': |{"name": "h", "arguments": |"function": |"type": "function", |`+
	`{|}|[|]|,|:|"|'|"a": |"b"|'c': |d: |"text|more"|\|\n|\u12|\u00e9|\d|true|None|NaN|007|1_000|0x1F|.5|//|/*|*/|#|;|=|`+
	"<arg_key>|</arg_key>|<arg_value>|</arg_value>|f\n|<minimax:tool_call>|</minimax:tool_call>|"+
	"<invoke name=\"f\">|</invoke>|<parameter name=\"a\">|<seed:tool_call>|</seed:tool_call>|"+
	"<|START_ACTION|>|<|END_ACTION|>|Action:|{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": |"+
	"\"tool_name\": |<|start|>assistant|<|channel|>analysis|<|channel|>commentary|to=functions.f|<|constrain|>json|"+
	"<|message|>|<|end|>|<|call|>|<|tool_call|>|<|/tool_call|>|<TOOLCALL>|</TOOLCALL>|"+
	"<|tool_calls_section_begin|>|<|tool_call_begin|>functions.f:0|<|tool_call_argument_begin|>|<|tool_call_end|>|<|tool_calls_section_end|>|"+
	"```|```json\n|<|</|日|\n|\t| |1|-|\x00|<|python_tag|>|null|\"\"|</tool|</para|junk", "|"), gemmaOpen, gemmaOpen+"call:f{", gemmaEnd, gemmaQuote, gemmaQuote+"x", gemmaResponse, "call:f")

func TestRandomAnswers(t *testing.T) {
	r, rounds := rand.New(rand.NewPCG(3, 9)), 3000
	if testing.Short() {
		rounds = 300
	}
	begins := map[Family]string{Hermes: "<tool_call>", Mistral: "[TOOL_CALLS]", DeepSeek: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", Kimi: "<|tool_calls_section_begin|><|tool_call_begin|>functions.", Phi: "<|tool_call|>", Nemotron: "<TOOLCALL>", Cohere: CohereOpen + "[", CommandR: commandOpen + " ```json\n[",
		GLM: "<tool_call>f\n", MiniMax: `<minimax:tool_call><invoke name="f">`, Gemma: gemmaOpen + "call:f{a:", Harmony: "<|channel|>commentary to=functions.f<|message|>{", Seed: "<seed:tool_call><function=f>", DSML: `<｜DSML｜function_calls><｜DSML｜invoke name="f">`}
	for range rounds {
		for _, f := range Families {
			var b strings.Builder
			if r.IntN(2) == 0 {
				b.WriteString(begins[f])
			}
			if r.IntN(2) == 0 {
				b.WriteString([]string{`{"name": "f", "arguments": {`, "f[ARGS]{", "<function=f>\n<parameter=a>", "f<｜tool▁sep｜>{"}[r.IntN(4)])
			}
			for range r.IntN(14) {
				b.WriteString(scraps[r.IntN(len(scraps))])
			}
			judge(t, f, b.String(), 1+r.IntN(4), r.IntN(3) == 0)
		}
	}
}
