// Package toolcall finds tool calls and thoughts in the output of a model. Each model family has
// its own syntax. A parser accepts text incrementally, and its results do not depend on how the
// text is split, so streaming and whole answers agree. Text that resembles a call but is none
// (unknown name, no object) stays text. Once a call has started it stays a call. Its arguments are
// repaired incrementally, so that they are always a JSON object. Only an answer that was cut leaves
// them incomplete.
package toolcall

import "strings"

// Family is a syntax of tool calls.
type Family string

// Families. Detect recognises them by the chat template.
const (
	None     Family = ""
	Hermes   Family = "hermes"      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>; Qwen, also with XML inside
	Llama    Family = "llama3_json" // {"name": ..., "parameters": {...}}; only whole answers
	Pythonic Family = "pythonic"    // [f(a=1), g()]; only whole answers
	Mistral  Family = "mistral"     // [TOOL_CALLS] and a JSON list, or name[ARGS]{...}
	DeepSeek Family = "deepseek"    // <｜tool▁calls▁begin｜>...
	Gemma    Family = "gemma"       // <|tool_call>call:f{a:<|"|>text<|"|>}<tool_call|>; Gemma 4
	Kimi     Family = "kimi"        // <|tool_calls_section_begin|>...
	Phi      Family = "phi"         // <|tool_call|> and a JSON list
	Nemotron Family = "nemotron"    // <TOOLCALL> and a JSON list; Nemotron Nano 2
	GLM      Family = "glm"         // <tool_call>name<arg_key>...</arg_key><arg_value>...</arg_value></tool_call>
	MiniMax  Family = "minimax"     // <minimax:tool_call><invoke name="..."><parameter name="...">...
	Seed     Family = "seed"        // <seed:tool_call><function=...><parameter=...>...
	DSML     Family = "dsml"        // <｜DSML｜function_calls><｜DSML｜invoke name="...">...; DeepSeek V3.2
	Liquid   Family = "lfm2"        // <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>; LFM2
	Harmony  Family = "harmony"     // <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>; gpt-oss
	// <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>; Command R7B, A
	Cohere   Family = "cohere"
	CommandR Family = "command-r" // Action: ```json [{"tool_name": ..., "parameters": {...}}]```; Command R
	JSON     Family = "json"      // a call or a list of calls as a whole answer; for any template with tools
)

// Families lists the names that may be configured.
var Families = []Family{Hermes, Llama, Pythonic, Mistral, DeepSeek, Gemma, Kimi, Phi, Nemotron, GLM, MiniMax, Seed,
	DSML, Liquid, Harmony, Cohere, CommandR, JSON}

// Detect returns the family of a chat template, or None if it does not render tools.
func Detect(template string) Family {
	has := func(s string) bool { return strings.Contains(template, s) }
	switch {
	case has(harmonyStart) && has(harmonyChannel): // also without tools
		return Harmony
	case !has("tools"):
		return None
	case has(CohereOpen):
		return Cohere
	case has(commandOpen) && has("tool_name"):
		return CommandR
	case has("<|tool_call>call:"):
		return Gemma
	case has("<arg_key>"):
		return GLM
	case has("<minimax:tool_call>"):
		return MiniMax
	case has("<seed:tool_call>"):
		return Seed
	case has("｜DSML｜"):
		return DSML
	case has("<|tool_calls_section_begin|>"):
		return Kimi
	case has(liquidOpen), has("<|tool_list_start|>"):
		return Liquid
	case has("<|tool_call|>"):
		return Phi
	case has(nemotronOpen):
		return Nemotron
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

type Call struct {
	Name      string
	Arguments string // a JSON object, or empty if it follows in Pieces
}

// Piece is a part of an answer: text, a thought (of Harmony; see ThoughtParser), the start of a call, possibly with all of its
// arguments, or further arguments of the newest call.
type Piece struct {
	Text      string
	Thought   string
	Call      *Call
	Arguments string
}
