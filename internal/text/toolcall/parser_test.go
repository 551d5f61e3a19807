package toolcall

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// types is a Schema: the types of each parameter, and "*" for all others.
type types map[string]string

func (s types) Allows(name, kind string) bool {
	list, ok := s[name]
	if !ok {
		list = s["*"]
	}
	return strings.Contains(list, kind)
}

func (s types) Lists(name, value string) bool { return strings.Contains(s[name], "="+value) }

var known = map[string]Tool{
	"f":           {Schema: types{"*": "integer", "path": "string", "city": "string"}},
	"g":           {},
	"get_weather": {Schema: types{"city": "string", "days": "integer"}},
}

// render formats pieces and joins adjacent texts.
func render(pieces []Piece) string {
	var b strings.Builder
	open := false
	for _, p := range pieces {
		if open && p.Arguments == "" {
			b.WriteString("»")
			open = false
		}
		if p.Call != nil {
			b.WriteString("«" + p.Call.Name + p.Call.Arguments)
			open = true
		}
		if p.Thought != "" {
			b.WriteString("‹" + p.Thought + "›")
		}
		b.WriteString(p.Text + p.Arguments)
	}
	if open {
		b.WriteString("»")
	}
	return strings.ReplaceAll(b.String(), "›‹", "")
}

func whole(f Family, text string) string {
	p := New(f, known)
	return render(append(p.Push(text), p.Flush(false)...))
}

func TestFamilies(t *testing.T) {
	for _, c := range []struct {
		f          Family
		text, want string
	}{
		{Hermes, "No call. ", "No call. "},
		{Hermes, "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n", `Sure.«f{"a": 1}»«g{}»`},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>", `«f{"a":"</tool_call>"}»`},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":}}</tool_call> after", "«f{\"a\":null}» after"},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":{</tool_call> after", "«f{\"a\":{}}» after"},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{</tool_call> after", "«f{}» after"},
		{Hermes, "<tool_call>{\"arguments\":{\"a\":\"</tool_call>\"},\"name\":\"f\"}</tool_call>", `«f{"a":"</tool_call>"}»`},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"hal", `«f{"a":"hal"}»`},
		{Hermes, "<tool_call></tool_call>x", "<tool_call></tool_call>x"},
		{Hermes, "<tool_call><function=f></function></tool_call>", "«f{}»"},
		{Hermes, "<tool_call><function=f><parameter=a>1</parameter><parameter=b>2", "«f{\"a\": 1, \"b\": 2}»"},
		{Hermes, "<tool_call>{\"name\":\"h\",\"arguments\":{}}</tool_call>", "<tool_call>{\"name\":\"h\",\"arguments\":{}}</tool_call>"},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "«f{}»"},
		{Hermes, "<tool_call>{\"name\":\"f\",\"argu", "<tool_call>{\"name\":\"f\",\"argu"},
		{Hermes, "a <tool", "a <tool"},
		{Hermes, "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", `«get_weather{"city": "12", "days": 3}»`},
		{Liquid, "Let me see. <|tool_call_start|>[f(a=1, path='x'), g()]<|tool_call_end|>\nDone.",
			"Let me see.«f{\"a\": 1, \"path\": \"x\"}»«g{}»\nDone."},
		{Liquid, "<|tool_call_start|>[f(a=1)]<|tool_call_end|> <|tool_call_start|>[g()]<|tool_call_end|> ", `«f{"a": 1}»«g{}»`},
		{Liquid, "<|tool_call_start|>[f(city=\"<|tool_call_start|>\")]", `«f{"city": "<|tool_call_start|>"}»`},
		{Liquid, "<|tool_call_start|>[h(a=1)]<|tool_call_end|> x", "<|tool_call_start|>[h(a=1)]<|tool_call_end|> x"},
		{Liquid, "<|tool_call_start|>[f(a=", "<|tool_call_start|>[f(a="},
		{Liquid, "a <|tool_call_", "a <|tool_call_"},
		{Liquid, " No call. ", " No call. "},
		{Llama, `{"name": "f", "parameters": {"a": "x"}}`, `«f{"a": "x"}»`},
		{Llama, `<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}`, `«f{}»«g{}»`},
		{Llama, `{"answer": 42}`, `{"answer": 42}`},
		{Llama, ` Plain { text`, ` Plain { text`},
		{Llama, `[get_weather(city='Oslo', days=[1, 2,], on=True, x={"k": None})]`, `«get_weather{"city": "Oslo", "days": [1, 2], "on": true, "x": {"k": null}}»`},
		{Pythonic, `[f(a="q\"\u00e9", b=-1.5), g()]`, `«f{"a": "q\"é", "b": -1.5}»«g{}»`},
		{Pythonic, `[f(a=b)]`, `[f(a=b)]`},
		{Pythonic, `[1, 2]`, `[1, 2]`},
		{Mistral, `Text.[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "123456789"}, {"name": "g", "arguments": {}}]`, `Text.«f{"a": 1}»«g{}»`},
		{Mistral, `[TOOL_CALLS]f[ARGS]{"a": {}}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}`, `«f{"a": {}}»«g{}»`},
		{Mistral, `[TOOL_CALLS]f[ARGS]{"a": `, `«f{"a": null}»`},
		{Mistral, `[TOOL_CALLS]h[ARGS]{}`, `[TOOL_CALLS]h[ARGS]{}`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `«f{"a":1}»«g{}»`},
		{DeepSeek, "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\":1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `Ok«f{"a":1}»`},
		{Gemma, `Sure.` + "\n" + `<|tool_call>call:f{a:<|"|>x "y" \n<|"|>,b:[1,<|"|>z<|"|>,{c:true,d:null}],e:-2.5}<tool_call|>`, `Sure.«f{"a":"x \"y\" \\n","b":[1,"z",{"c":true,"d":null}],"e":-2.5}»`},
		{Gemma, `<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>`, `«f{"a":1}»«g{}»`},
		{Gemma, `<|tool_call>call:f{<|"|>a<|"|>:<|"|>b<|"|>}<tool_call|> after`, `«f{"a":"b"}» after`},
		{Gemma, `<|tool_call>call:f{a:{b:[<tool_call|> after`, `«f{"a":{"b":[]}}» after`},
		{Gemma, `<|tool_call>call:f{a:<|"|>open, {}<tool_call|>x`, `«f{"a":"open, {}"}»x`},
		{Gemma, `<|tool_call>call:f{"a": "q\"r", b: two words ,c:}`, `«f{"a":"q\"r","b":"two words","c":null}»`},
		{Gemma, `<|tool_call>call:h{a:1}<tool_call|>`, `<|tool_call>call:h{a:1}<tool_call|>`},
		{Gemma, `a <|tool_cal`, `a <|tool_cal`},
		{Gemma, `<|tool_call>call:f`, `<|tool_call>call:f`},
		{Gemma, "No call. ", "No call. "},
		{Harmony, "<|channel|>analysis<|message|>Hm, 2 < 3.<|end|><|start|>assistant<|channel|>final<|message|>Yes <b>.", "‹Hm, 2 < 3.›Yes <b>."},
		{Harmony, "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>", `‹x›«f{"a":1}»`},
		{Harmony, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>", `I look.«g{}»`},
		{Harmony, "<|channel|>commentary<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>", "A\nB"},
		{Harmony, "<|channel|>commentary to=functions.f<|message|>{\"city\": \"a\nb\", 'x': [1,<|call|>", `«f{"city": "a\nb", "x": [1]}»`},
		{Harmony, "<|channel|>commentary to=functions.g<|message|><|call|>", `«g{}»`},
		{Harmony, "<|channel|>commentary to=functions.h<|message|>{\"a\":1}<|call|>", `{"a":1}`},
		{Harmony, "<|channel|>final<|message|>a <|en", "a <|en"},
		{Harmony, "<|channel|>final", ""},
		{Harmony, "{\"a\": 1} <|x|>", "{\"a\": 1} <|x|>"},
		{Harmony, "No header. ", "No header. "},
		{Kimi, "Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", `Ok«f{"a": 1}»«g{}»`},
		{Kimi, "<|tool_calls_section_begin|><|tool_call_begin|>functions.h:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
			"<|tool_calls_section_begin|><|tool_call_begin|>functions.h:0<|tool_call_argument_begin|>{}<|tool_call_end|>"},
		{Phi, `Sure.<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]<|/tool_call|>`, `Sure.«f{"a": 1}»«g{}»`},
		{Phi, `<|tool_call|>[{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]<|/tool_call|> x`, `«f{"a": 1}» x`},
		{Phi, `<|tool_call|>[]<|/tool_call|>`, `<|tool_call|>[]<|/tool_call|>`},
		{Nemotron, `Sure.<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]</TOOLCALL>`, `Sure.«f{"a": 1}»«g{}»`},
		{Nemotron, `<TOOLCALL>none</TOOLCALL>`, `<TOOLCALL>none</TOOLCALL>`},
		{GLM, "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g</tool_call>", `I look.«get_weather{"city": "Oslo", "days": 3}»«g{}»`},
		{GLM, "<tool_call>f<arg_key>path</arg_key><arg_value>a\nb</arg_value><arg_key>x</arg_key><arg_value>{\"k\": [1]}</arg_value></tool_call>", `«f{"path": "a\nb", "x": {"k": [1]}}»`},
		{GLM, "<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>see </arg_value> and </tool_call> here</arg_value>\n</tool_call> after", `«f{"path": "see </arg_value> and </tool_call> here"}» after`},
		{GLM, "<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>a</tool_call>", `«f{"path": "a"}»`},
		{GLM, "<tool_call>h\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
			"<tool_call>h\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
		{GLM, `<tool_call>{"name": "f", "arguments": {}}</tool_call>`, `<tool_call>{"name": "f", "arguments": {}}</tool_call>`},
		{GLM, "<tool_call>f\njunk here\n<arg_key>a</arg_key>1</tool_call> x", "«f{}»junk here<arg_key>a</arg_key>1 x"},
		{GLM, "<tool_call>f\n<tool_call>g</tool_call>", "«f{}»«g{}»"},
		{GLM, "a <tool_ca", "a <tool_ca"},
		{MiniMax, "Yes.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Oslo</parameter>\n" +
			"<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>\nDone",
			"Yes.«get_weather{\"city\": \"Oslo\", \"days\": 3}»«g{}»\nDone"},
		{MiniMax, "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">1</invoke></minimax:tool_call>", `«f{"a": 1}»`},
		{MiniMax, "<minimax:tool_call><invoke name=\"f\"></invoke> then <invoke name=\"g\"></invoke></minimax:tool_call> end",
			"«f{}» then«g{}» end"},
		{MiniMax, "<minimax:tool_call><invoke name=\"h\"></invoke></minimax:tool_call>",
			"<minimax:tool_call><invoke name=\"h\"></invoke></minimax:tool_call>"},
		{Seed, "<seed:tool_call>\n<function=f>\n<parameter=path>\na b\n</parameter>\n</function>\n</seed:tool_call>", `«f{"path": "a b"}»`},
		{DSML, "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"path\" string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"a\" string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", `«f{"path": "5", "a": 5}»`},
		{Cohere, "I look.<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>", `I look.«f{"a": 1}»«g{}»`},
		{Cohere, "<|START_ACTION|>{\"tool_name\":\"f\",\"parameters\":{\"a\":\"<|END_ACTION|>\"}}<|END_ACTION|> after", `«f{"a":"<|END_ACTION|>"}» after`},
		{Cohere, "<|START_ACTION|>[{\"parameters\": {\"a\": 1}, \"tool_name\": \"f\", \"tool_call_id\": \"0\"}]<|END_ACTION|>", `«f{"a": 1}»`},
		{Cohere, "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"h\", \"parameters\": {}}]<|END_ACTION|>",
			"<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"h\", \"parameters\": {}}]<|END_ACTION|>"},
		{Cohere, "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": [1", `«f{"a": [1]}»`},
		{Cohere, "a <|START_AC", "a <|START_AC"},
		{CommandR, "Plan.\nAction:```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"a\": 1}\n    },\n    {\"tool_name\": \"g\", \"parameters\": {}}\n]```", `Plan.«f{"a": 1}»«g{}»`},
		{CommandR, "Action: ```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```", "Action: ```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]\n```"},
		{CommandR, "Action: now.", "Action: now."},
		{JSON, "```json\n[{\"name\": \"f\", \"parameters\": {}}]\n```", "«f{}»"},
		{JSON, `{"name": "f", "parameters": {}} and more`, `«f{}» and more`},
		{JSON, "```json\n[1]\n```", "```json\n[1]\n```"},
		{JSON, `{"type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}`, `«f{"a":1}»`},
	} {
		if got := whole(c.f, c.text); got != c.want {
			t.Errorf("%s %q:\n%s\nwant\n%s", c.f, c.text, got, c.want)
		}
		inPieces(t, c.f, c.text, c.want)
	}
}

// inPieces checks that the result does not depend on how an answer is split.
func inPieces(t *testing.T, f Family, text, want string) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		p, rest := New(f, known), text
		var pieces []Piece
		for rest != "" {
			n := 1 + r.IntN(min(len(rest), 9))
			pieces = append(pieces, p.Push(rest[:n])...)
			rest = rest[n:]
		}
		if got := render(append(pieces, p.Flush(false)...)); got != want {
			t.Errorf("%s %q in pieces:\n%s\nwant\n%s", f, text, got, want)
			return
		}
	}
}

func TestThinker(t *testing.T) {
	for _, c := range []struct {
		inside           bool
		text             string
		thought, content string
	}{
		{false, "Hello", "", "Hello"},
		{false, "<think>\nhm <b>\n</think>\n\nHello ", "hm <b>", "Hello "},
		{false, " <thin", "", " <thin"},
		{true, "hm\n</think>Hello</think>", "hm", "Hello</think>"},
		{true, "never ends ", "never ends ", ""},
		{false, "", "", ""},
		{true, "<think>\nplan</think>hi", "plan", "hi"},
		{true, "\n<think> <think>plan <think></think>hi", "plan <think>", "hi"},
		{false, "<think><think></think>\n\nhi", "", "hi"},
		{true, "<thi", "<thi", ""},
		{false, "<|channel>thought\n\n hm <b>\n<channel|>Hello", "hm <b>", "Hello"},
		{false, "<|channel>thought\n<channel|>\nHello <|channel>", "", "Hello <|channel>"},
		{false, "<|channel>thoughtful<channel|>hi", "thoughtful", "hi"},
		{false, "<|channel>thought\nthought\nx<channel|>hi", "thought\nx", "hi"},
		{true, "thou", "thou", ""},
	} {
		for cut := 1; cut < 8; cut++ {
			tags := DefaultTags
			if strings.Contains(c.text, "<|channel>") {
				tags, _ = TagsOf("<|channel>thought<channel|>")
			}
			if thought, content := thoughts(NewThoughtParser(tags, c.inside, false), c.text, cut); thought != c.thought || content != c.content {
				t.Errorf("%q by %d: thought %q, content %q", c.text, cut, thought, content)
			}
		}
	}
}

// thoughts passes a text to a parser in pieces of cut bytes.
func thoughts(p *ThoughtParser, text string, cut int) (thought, content string) {
	add := func(a, b string) { thought += a; content += b }
	for text != "" {
		n := min(cut, len(text))
		add(p.Push(text[:n]))
		text = text[n:]
	}
	add(p.Flush())
	return thought, content
}

// A thought that only has a closing tag.
func TestLateThoughts(t *testing.T) {
	for _, c := range []struct{ text, thought, content string }{
		{"plan</think>\n\nhi", "plan", "hi"},
		{"<think>\nplan</think>\n\nhi </think> there", "plan", "hi </think> there"},
		{"Hello ", "", "Hello "},
		{"The `</think>` tag, \"</think>\" quoted", "", "The `</think>` tag, \"</think>\" quoted"},
		{" plan `</think>` more\n</think>", "plan `</think>` more", ""},
		{"a </thin", "", "a </thin"},
	} {
		for cut := 1; cut < 9; cut++ {
			if thought, content := thoughts(NewThoughtParser(DefaultTags, false, true), c.text, cut); thought != c.thought || content != c.content {
				t.Errorf("%q by %d: thought %q, content %q", c.text, cut, thought, content)
			}
		}
	}
}

func TestThought(t *testing.T) {
	for turn, want := range map[string][2]bool{"": {}, "<think>\n": {true, false}, "<think>\nhalf": {true, false},
		"<think>\n\n</think>\n\n": {false, true},
		"</think>":                {false, true}, "<think>a</think><think>\nb": {true, false}} {
		if inside, closed := DefaultTags.Thought(turn); inside != want[0] || closed != want[1] {
			t.Errorf("%q: inside %v, closed %v", turn, inside, closed)
		}
	}
}

// Tags of other families separate a thought too, in pieces and whole.
func TestThoughtTags(t *testing.T) {
	for template, want := range map[string]Tags{"a</think>b": DefaultTags, "[THINK] and [/THINK]": {Open: "[THINK]", Close: "[/THINK]"},
		"<seed:think></seed:think>": {Open: "<seed:think>", Close: "</seed:think>"},
		"◁/think▷":                  {Open: "◁think▷", Close: "◁/think▷"},
		"<|channel>x<channel|>":     {Open: "<|channel>", Close: "<channel|>", Label: "thought\n"}, "think": {}} {
		tags, ok := TagsOf(template)
		if tags != want || ok != (want != Tags{}) {
			t.Errorf("%q: %v, %v", template, tags, ok)
		}
		if !ok {
			continue
		}
		text := tags.Open + "I see <think> " + tags.Open[:3] + tags.Close + "\n\nYes."
		for n := 1; n <= len(text); n++ {
			th, thought, answer := NewThoughtParser(tags, false, false), "", ""
			for at := 0; at < len(text); at += n {
				a, b := th.Push(text[at:min(at+n, len(text))])
				thought, answer = thought+a, answer+b
			}
			a, b := th.Flush()
			if thought, answer = thought+a, answer+b; thought != "I see <think> "+tags.Open[:3] || answer != "Yes." {
				t.Errorf("%q by %d: thought %q, answer %q", text, n, thought, answer)
			}
		}
		if inside, closed := tags.Thought("x" + tags.Open + "\n"); !inside || closed {
			t.Errorf("%v: inside %v, closed %v", tags, inside, closed)
		}
	}
}

// Families of which the tests have no template, by the marks that it renders. Most have the mark of
// another family too.
func TestDetectMarks(t *testing.T) {
	for marks, want := range map[string]Family{"<tool_call>{{ name }}<arg_key>": GLM,
		"<minimax:tool_call><invoke name=": MiniMax, "<seed:tool_call><function=": Seed, "<｜DSML｜function_calls>": DSML,
		"<|tool_calls_section_begin|><|tool_call_begin|>": Kimi, "<|tool|><|tool_call|>": Phi,
		"<AVAILABLE_TOOLS><TOOLCALL>[": Nemotron, "<tool_call>\n<function=": Hermes, "[TOOL_CALLS]": Mistral} {
		if got := Detect("{% for t in tools %}" + marks); got != want {
			t.Errorf("%q: %q, want %q", marks, got, want)
		}
	}
	if got := Detect("<|start|>assistant<|channel|>final<|message|>"); got != Harmony {
		t.Errorf("channels without tools: %q", got)
	}
	if got := Detect("<arg_key>"); got != None {
		t.Errorf("a template without tools: %q", got)
	}
}

// Detect recognises the templates of the tokenizer's tests.
func TestDetect(t *testing.T) {
	for name, want := range map[string]Family{"qwen25": Hermes, "qwen3_xml": Hermes, "qwen35": Hermes, "llama32": Llama,
		"mistral_small": Mistral, "deepseek_v31": DeepSeek, "gemma3_tools": JSON, "gemma4": Gemma, "mixtral": None} {
		text, err := os.ReadFile(filepath.Join("..", "tokenizer", "testdata", "templates", name+".jinja"))
		if err != nil {
			t.Fatal(err)
		}
		if got := Detect(string(text)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestQwen35 reads an answer whose thought the prompt opened, with a call in Qwen 3.5's form after it.
// The result does not depend on how the text is split.
func TestQwen35(t *testing.T) {
	const text = "I need the weather.\n</think>\n\nLet me look.\n\n<tool_call>\n<function=get_weather>\n" +
		"<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
	for _, size := range []int{1, 7, len(text)} {
		think, p, thoughts := NewThoughtParser(DefaultTags, true, false), New(Hermes, known), ""
		var pieces []Piece
		take := func(thought, answer string) {
			thoughts += thought
			pieces = append(pieces, p.Push(answer)...)
		}
		for part := range slices.Chunk([]byte(text), size) {
			take(think.Push(string(part)))
		}
		take(think.Flush())
		got := render(append(pieces, p.Flush(false)...))
		if want := `Let me look.«get_weather{"city": "New\nYork", "days": 3}»`; strings.TrimSpace(thoughts) != "I need the weather." || got != want {
			t.Errorf("in steps of %d: thought %q, answer %s, want %s", size, thoughts, got, want)
		}
	}
}
