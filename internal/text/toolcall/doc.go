// Package toolcall finds calls of functions, and thoughts, in what a model writes. Each
// family of models has its own way to write them. A parser takes text as it comes, and
// what it gives does not depend on where the text was cut: a stream and the whole answer
// agree. What looks like a call and is none (an unknown name, no object) is text. A call
// that has begun stays a call: its arguments are repaired as they come, so that they are an
// object of JSON whatever the model wrote. Only an answer that was cut leaves them open.
package toolcall

import "strings"

// Family is a way to write calls.
type Family string

// Families. Detect tells them apart by the chat template.
const (
	None     Family = ""
	Hermes   Family = "hermes"      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>; Qwen, also with XML inside
	Llama    Family = "llama3_json" // {"name": ..., "parameters": {...}}, whole answers
	Pythonic Family = "pythonic"    // [f(a=1), g()], whole answers
	Mistral  Family = "mistral"     // [TOOL_CALLS] and a JSON list, or name[ARGS]{...}
	DeepSeek Family = "deepseek"    // <｜tool▁calls▁begin｜>...
	JSON     Family = "json"        // whole answers, a call or a list of them; any template that shows tools
)

// Families are the names that a parser may be asked for by.
var Families = []Family{Hermes, Llama, Pythonic, Mistral, DeepSeek, JSON}

// Detect is the family of a chat template; None when it does not show tools.
func Detect(template string) Family {
	has := func(s string) bool { return strings.Contains(template, s) }
	switch {
	case !has("tools"):
		return None
	case has("<tool_call>"):
		return Hermes
	case has("[TOOL_CALLS]"):
		return Mistral
	case has("tool▁calls▁begin"):
		return DeepSeek
	case has("<|python_start|>"), has("[func_name1("):
		return Pythonic
	case has("ipython"), has("<|python_tag|>"):
		return Llama
	}
	return JSON
}

// Thinks tells whether answers under a template may begin with thoughts.
func Thinks(template string) bool { return strings.Contains(template, "</think>") }

type Call struct {
	Name      string
	Arguments string // a JSON object, or empty: Pieces follow that are one
}

// Piece is a part of an answer: text, the beginning of a call, which may have all of its
// arguments, or more arguments of the newest call.
type Piece struct {
	Text      string
	Call      *Call
	Arguments string
}
