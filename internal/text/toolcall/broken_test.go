package toolcall

import "testing"

// Typical mistakes of models: the arguments of each call still become a JSON object, and text
// outside calls stays text.
func TestBrokenCalls(t *testing.T) {
	const open, end = "<tool_call>\n", "\n</tool_call>"
	call := func(args string) string { return open + `{"name": "f", "arguments": ` + args + "}" + end }
	for _, c := range []struct {
		f          Family
		text, want string
	}{
		{Hermes, call("{\"path\": \"l1\nl2\"}"), `«f{"path": "l1\nl2"}»`},
		{Hermes, call(`{"n": 1,}`), `«f{"n": 1}»`},
		{Hermes, call(`{"path": "C:\dir"}`), `«f{"path": "C:\\dir"}»`},
		{Hermes, call(`{"path": True, "n": None}`) + "\nDone", `«f{"path": true, "n": null}»` + "\nDone"},
		{Hermes, call(`{"path": "a"`) + " after", `«f{"path": "a"}» after`},
		{Hermes, open + `{"name": "f", "arguments": {"path": "a"` + end, `«f{"path": "a"}»`},
		{Hermes, open + `{"name": "f", "arguments": {"path": "a b` + end, `«f{"path": "a b\n"}»`},
		{Hermes, open + `{"name": "f", "arguments": {"path": "a b` + end + "\n" + call(`{"x": "y"}`), `«f{"path": "a b\n"}»«f{"x": "y"}»`},
		{Hermes, call(`{"path": "see </tool_call> and <tool_call>", "n": 1}`), `«f{"path": "see </tool_call> and <tool_call>", "n": 1}»`},
		{Hermes, call(`{"a": 1} and then`) + " after", `«f{"a": 1}» and then}` + "\n after"},
		{Hermes, call(`{"a": 1 and then}`), `«f{"a": 1}»and then}}`},
		{Hermes, call(`null`), `«f{}»`},
		{Hermes, call(`""`), `«f{}»`},
		{Hermes, call(`[]`), `«f{}»`},
		{Hermes, call(`"{\"a\": 1,}"`), `«f{"a": 1}»`},
		{Hermes, call(`[1]`), open + `{"name": "f", "arguments": [1]}` + end},
		{Hermes, open + `{"name": "f"}` + end, `«f{}»`},
		{Hermes, open + `{"name": "f"` + end, `«f{}»`},
		{Hermes, open + `{'name': 'f', 'arguments': {'a': 'it's', 'b': True}}` + end, `«f{"a": "it's", "b": true}»`},
		{Hermes, open + `{"arguments": {"a": 1,}, "name": "f"` + end, `«f{"a": 1}»`},
		{Hermes, open + `{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}` + end, `«f{"a": 1}»`},
		{Hermes, open + `{"name": "f", "arguments": {"a": 1}, "id": "x"}` + end, `«f{"a": 1}»`},
		{Hermes, open + `{"name": "f", "arguments": {"a": 1}}}` + end + " x", `«f{"a": 1}» x`},
		{Hermes, open + `{"Name": "f", "ARGUMENTS": {"a": 1}}` + end, open + `{"Name": "f", "ARGUMENTS": {"a": 1}}` + end},
		{Hermes, open + `{"name": "f", "Arguments": {"a": 1}}` + end, `«f{}»`},
		{Hermes, call(`{"a": 1}`) + "\n</tool_cal", `«f{"a": 1}»` + "\n</tool_cal"},
		{Hermes, open + `{"name": "f", "arguments": {"a": 1}}` + "\n</tool_cal", `«f{"a": 1}»`},
		{Hermes, open + `{"name": "f", "arguments": {"a": 1}}` + "\n" + call(`{}`), `«f{"a": 1}»«f{}»`},
		{Hermes, "<tool_call><tool_call>" + `{"name": "f", "arguments": {}}` + end, `«f{}»`},
		{Hermes, open + "```json\n{\"name\": \"f\", \"arguments\": {}}\n```" + end + "\n```go\nx\n```", "«f{}»\n```go\nx\n```"},
		{Hermes, "<tool_call>no</tool_call> " + call(`{}`), `<tool_call>no</tool_call>«f{}»`},

		{Hermes, open + "<function=f>\n<parameter=path>\na b\n</parameter>" + end, `«f{"path": "a b"}»`},
		{Hermes, open + "<function=f>\n<parameter=path>\na.txt\n</function>" + end, `«f{"path": "a.txt"}»`},
		{Hermes, open + "<function=f>\n<parameter=path>\na.txt" + end + "\nDone", `«f{"path": "a.txt"}»` + "\nDone"},
		{Hermes, open + "<function=f>\n<parameter=path>\na.txt", `«f{"path": "a.txt"}»`},
		{Hermes, open + "<function=f><parameter=path>a.txt<parameter=n>3</parameter></function>" + end, `«f{"path": "a.txt", "n": 3}»`},
		{Hermes, open + "<function=f>\n<parameter=path>\n<x>\n</parameter>\n</x>\n</parameter>\n</function>" + end,
			"«f{\"path\": \"<x>\"}»\n</x>"},
		{Hermes, open + "<function=f>\n<parameter=path>\na </function> b </tool_call> c\n</parameter>\n</function>" + end, `«f{"path": "a </function> b </tool_call> c"}»`},
		{Hermes, open + "<function=f>\n<parameter name=\"path\">\na\n</parameter>\n</function>" + end, `«f{"path": "a"}»`},
		{Hermes, open + "<function=f>\n<parameter=path>a</parameter>\n<parameter=n\n3\n</parameter>\n</function>" + end, `«f{"path": "a", "n": 3}»`},
		{Hermes, open + "<function=f>\n<parameter=a>\r\nx\r\n</parameter></function>" + end, `«f{"a": "x"}»`},
		{Hermes, open + "<function=f>\n<parameter=a>\nx\n</function>" + end + "\n" + open + "<function=g>\n<parameter=b>\ny\n</parameter>\n</function>" + end, `«f{"a": "x"}»«g{"b": "y"}»`},
		{Hermes, open + "<function=f>" + end, `«f{}»`},
		{Hermes, "I will.\n<function=f>\n<parameter=path>\na b\n</parameter>\n</function>", `I will.«f{"path": "a b"}»`},
		{Hermes, "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nDone", "«f{\"a\": 1}»\nDone"},
		{Hermes, "<function=f></function> and <function=g>{\"a\": 1}</function>.", `«f{}» and«g{"a": 1}».`},
		{Hermes, "Use <function=f> like so.", "Use <function=f> like so."},
		{Hermes, "Use <function=h>\n<parameter=a>1</parameter></function>", "Use <function=h>\n<parameter=a>1</parameter></function>"},
		{Hermes, "a < b, <function, <function=f", "a < b, <function, <function=f"},

		{Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": \"x\ny\",}", `«f{"a": "x\ny"}»`},
		{Mistral, `[TOOL_CALLS]f[ARGS]{"a": "x[TOOL_CALLS]g[ARGS]{}`, `«f{"a": "x"}»«g{}»`},
		{Mistral, `[TOOL_CALLS]f[ARGS]`, `«f{}»`},
		{Mistral, `[TOOL_CALLS]f[TOOL_CALLS]g[ARGS]null`, `«f{}»«g{}»`},
		{Mistral, `[TOOL_CALLS]f[ARGS]{"a": 1} and [1] more[TOOL_CALLS]g{}`, `«f{"a": 1}» and [1] more«g{}»`},
		{Mistral, `[TOOL_CALLS][{"name": "f", "arguments": {"a": None}}, {'name': 'g'}]`, `«f{"a": null}»«g{}»`},
		{Mistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]\nDone", "«f{\"a\": 1}»\nDone"},
		{Llama, "{\"name\": \"f\", \"parameters\": {\"a\": \"x\ny\"}", `«f{"a": "x\ny"}»`},
		{Llama, `{"name": "f", "parameters": {"a": 007, "b": [1, 2`, `«f{"a": 7, "b": [1, 2]}»`},
		{Llama, `{"name": "f", "parameters": null}`, `«f{}»`},
		{JSON, "```json\n{'name': 'f', 'parameters': {'a': True}}\n```\nDone", "«f{\"a\": true}»\nDone"},
		{JSON, "```tool_code\n{\"name\": \"f\", \"parameters\": {}}\n```", `«f{}»`},
		{JSON, `{"name": "f"}, {"name": "g", "parameters": {"a": 1, // x` + "\n}}", "«f{}»«g{\"a\": 1}»"},
		{JSON, `{"answer": {"name": "f"}}`, `{"answer": {"name": "f"}}`},
		{Pythonic, `[f(a=007, b=.5, c=None)]`, `«f{"a": 7, "b": 0.5, "c": null}»`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"x\ny<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>", `«f{"a": "x\ny"}»«g{}»`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": True,}", `«f{"a": true}»`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1 and then}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `«f{"a": 1}»and then}`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1;}<｜tool▁call▁end｜><｜tool▁calls▁end｜> bye", `«f{"a": 1}»;} bye`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}]<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `«f{"a": 1}»]«g{}»`},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{} and<｜tool▁call▁end｜><｜tool▁calls▁end｜> <｜tool▁call▁end｜>",
			"«f{}» and <｜tool▁call▁end｜>"},
		{DeepSeek, "Say <｜tool▁call▁end｜>.", "Say <｜tool▁call▁end｜>."},
		{DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{} no <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `«f{}» no«g{}»`},
	} {
		if got := whole(c.f, c.text); got != c.want {
			t.Errorf("%s %q:\n%s\nwant\n%s", c.f, c.text, got, c.want)
		}
		inPieces(t, c.f, c.text, c.want)
	}
}

// An answer that was cut by its limit or a stop string keeps its complete parts, and nothing is
// completed. The start of a mark after a call is not text.
func TestCutCalls(t *testing.T) {
	for _, c := range []struct {
		f          Family
		text, want string
		open       bool
	}{
		{Hermes, `<tool_call>{"name":"f","arguments":{"a":"hal`, `«f{"a":"hal»`, true},
		{Hermes, `<tool_call>{"name":"f","arguments":{"a": [1, `, `«f{"a": [1»`, true},
		{Hermes, `<tool_call>{"name":"f","arguments":{"a": 1}`, `«f{"a": 1}»`, false},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}\n</tool_cal", `«f{"a": 1}»`, false},
		{Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_c", `«f{}»`, false},
		{Hermes, "a <tool", "a <tool", false},
		{Hermes, `<tool_call>{"name":"f"`, `<tool_call>{"name":"f"`, false},
		{Hermes, "<tool_call><function=f><parameter=a>1</parameter><parameter=b>2", "«f{\"a\": 1»", true},
		{Hermes, "<tool_call><function=f><parameter=a>1</parameter>\n</func", "«f{\"a\": 1}»", false},
		{Hermes, "<tool_call><function=f><parameter=a>1</param", "«f»", true},
		{GLM, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>path</arg_key>\n<arg_value>ha", `«f{"a": 1»`, true},
		{GLM, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_", `«f{"a": 1}»`, false},
		{GLM, "<tool_call>f\n<arg_ke", `«f»`, true},
		{GLM, "<tool_call>get_wea", "<tool_call>get_wea", false},
		{GLM, "<tool_call>g</tool_call>\n<tool_c", `«g{}»`, false},
		{MiniMax, "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">1</parameter><parameter name=\"b", `«f{"a": 1»`, true},
		{MiniMax, "<minimax:tool_call><invoke name=\"f\"></invoke></minimax:tool", `«f{}»`, false},
		{Kimi, `<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "x`, `«f{"a": "x»`, true},
		{Phi, `<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool`, `«f{"a": 1}»`, false},
		{Mistral, `[TOOL_CALLS]f[ARGS]{"a": `, `«f{"a":»`, true},
		{Mistral, `[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL`, `«f{"a": 1}»`, false},
		{Mistral, `[TOOL_CALLS]f`, `[TOOL_CALLS]f`, false},
		{JSON, `{"name": "f", "parameters": {"a": "x`, `«f{"a": "x»`, true},
		{JSON, `{"name": "f", "parameters": {"a": "x"}`, `«f{"a": "x"}»`, false},
	} {
		p := New(c.f, known)
		if got := render(append(p.Push(c.text), p.Flush(true)...)); got != c.want || p.Open() != c.open {
			t.Errorf("%s %q:\n%s, open: %v\nwant\n%s", c.f, c.text, got, p.Open(), c.want)
		}
		judge(t, c.f, c.text, 1, true)
	}
}
