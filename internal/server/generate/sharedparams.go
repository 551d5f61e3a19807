package generate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/sessions"
)

// SharedParams returns the parameters of both of OpenAI's completions. Other protocols have some of
// them, under their own names.
func (s *Service) SharedParams() *jsonbody.Table {
	l := &s.Config.Limits
	const most = math.MaxInt32
	id := jsonbody.Integer("", 0, int64(s.VocabSize-1))
	stop := jsonbody.Text("", l.StopBytes)
	return jsonbody.NewTable(
		jsonbody.Text("model", 512),
		jsonbody.Bool("stream"),
		jsonbody.Param{Name: "stream_options", Kind: jsonbody.KindObject,
			Members: jsonbody.NewTable(jsonbody.Bool("include_usage"), jsonbody.Bool("continuous_usage_stats"))},
		jsonbody.Integer("n", 1, int64(l.N)),
		jsonbody.Param{Name: "best_of", Kind: jsonbody.KindInteger, Min: 1, Max: int64(l.N),
			About: fmt.Sprintf("n to %d; chats: equal to n", l.N)},
		jsonbody.Integer("max_tokens", -1, most),
		jsonbody.Integer("max_completion_tokens", -1, most),
		jsonbody.Integer("min_tokens", 0, most),
		jsonbody.Number("temperature", 0, 2),
		jsonbody.Number("top_p", 0, 1),
		jsonbody.Integer("top_k", -1, most),
		jsonbody.Number("min_p", 0, 1),
		jsonbody.Number("presence_penalty", -2, 2),
		jsonbody.Number("frequency_penalty", -2, 2),
		jsonbody.Param{Name: "repetition_penalty", Kind: jsonbody.KindNumber, Low: 0, Above: true, High: 10},
		jsonbody.Param{Name: "logit_bias", Kind: jsonbody.KindMap, MaxLen: l.LogitBias,
			Items: &jsonbody.Param{Kind: jsonbody.KindNumber, Low: -100, High: 100}},
		jsonbody.Param{Name: "allowed_token_ids", Kind: jsonbody.KindList, MinLen: 1, MaxLen: s.VocabSize, Items: &id},
		jsonbody.List("bad_words", l.BadWords, stop),
		jsonbody.Param{Name: "seed", Kind: jsonbody.KindInteger, Format: "int64"},
		jsonbody.Either("stop", stop, jsonbody.List("", l.Stops, stop)),
		jsonbody.List("stop_token_ids", l.StopTokens, id),
		jsonbody.Bool("include_stop_str_in_output"),
		jsonbody.Bool("ignore_eos"),
		jsonbody.Bool("skip_special_tokens"),
		jsonbody.Bool("add_special_tokens"),
		jsonbody.Bool("return_tokens_as_token_ids"),
		jsonbody.Integer("truncate_prompt_tokens", -1, most),
		jsonbody.Text("kv_policy", l.PolicyBytes),
		jsonbody.Bool("cache"),
		jsonbody.Text("cache_salt", 512),
		jsonbody.Text("context", 64),
		jsonbody.Text("session", sessions.MaxName),
		jsonbody.Integer("session_ttl", 1, int64(sessions.MaxTTL/time.Second)),
		jsonbody.Integer("session_turns", 0, most),
		jsonbody.Param{Name: "speculate", Kind: jsonbody.KindText, MaxLen: 16, Words: append([]string{""}, speculate.Modes...),
			Pattern: speculatePattern()},
		jsonbody.Param{Name: "priority", Kind: jsonbody.KindInteger, Format: "int32"},
		jsonbody.Text("user", 1024),
		jsonbody.Any("metadata"),

		// Structured output: at most one of these.
		jsonbody.ObjectOf("response_format"),
		jsonbody.Param{Name: "structured_outputs", Kind: jsonbody.KindObject, Members: s.structureParams()},
		jsonbody.Either("guided_json", jsonbody.ObjectOf(""), jsonbody.Text("", 0), jsonbody.Bool("")),
		jsonbody.Text("guided_regex", l.GrammarBytes),
		jsonbody.List("guided_choice", 1<<16, jsonbody.Text("", 0)),
		jsonbody.Text("guided_grammar", l.GrammarBytes),
		jsonbody.Text("guided_whitespace_pattern", l.GrammarBytes),
		jsonbody.Text("guided_decoding_backend", 256),
		jsonbody.Text("grammar", l.GrammarBytes),
		jsonbody.Either("json_schema", jsonbody.ObjectOf(""), jsonbody.Text("", 0)),
	)
}

// structureParams returns the members of structured_outputs.
func (s *Service) structureParams() *jsonbody.Table {
	most := s.Config.Limits.GrammarBytes
	return jsonbody.NewTable(jsonbody.Any("json"), jsonbody.Bool("json_object"), jsonbody.Text("regex", most),
		jsonbody.List("choice", 1<<16, jsonbody.Text("", 0)),
		jsonbody.Text("grammar", most), jsonbody.Any("structural_tag"), jsonbody.Bool("disable_any_whitespace"), jsonbody.Bool("any_order"),
		jsonbody.Bool("disable_additional_properties"), jsonbody.Text("whitespace_pattern", most), jsonbody.Bool("disable_fallback"))
}

// speculatePattern returns the pattern of a mode with a number of drafts.
func speculatePattern() string {
	var modes, numbers []string
	for _, m := range speculate.Modes {
		if m != string(speculate.Off) {
			modes = append(modes, m)
		}
	}
	for n := range speculate.MaxDraft {
		numbers = append(numbers, strconv.Itoa(n+1))
	}
	return "^(" + strings.Join(modes, "|") + "):(" + strings.Join(numbers, "|") + ")$"
}

// ToolParams returns the parameters of a request with OpenAI's tools.
func ToolParams() []jsonbody.Param {
	return []jsonbody.Param{jsonbody.List("tools", MaxTools, jsonbody.ObjectOf("")), jsonbody.Either("tool_choice",
		jsonbody.Words("", "none", "auto", "required", "any"), jsonbody.ObjectOf("")), jsonbody.Bool("parallel_tool_calls")}
}

// ConversationParams returns the parameters that control how a chat is rendered.
func (s *Service) ConversationParams() []jsonbody.Param {
	return []jsonbody.Param{jsonbody.List("messages", s.Config.Limits.Messages, jsonbody.ObjectOf("")), jsonbody.Bool("add_generation_prompt"),
		jsonbody.Bool("continue_final_message"),
		jsonbody.ObjectOf("chat_template_kwargs"), jsonbody.Bool("enable_thinking"),
		jsonbody.Text("reasoning_effort", 64), jsonbody.ObjectOf("reasoning")}
}
