package api

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// sharedParams are the parameters of both of OpenAI's completions, which other protocols have
// under names of their own.
func (s *Service) sharedParams() *Table {
	l := &s.cfg.Limits
	const most = math.MaxInt32
	id := integerParam("", 0, int64(s.vocab-1))
	stop := textParam("", l.StopBytes)
	return NewTable(
		textParam("model", 512),
		boolParam("stream"),
		Param{Name: "stream_options", Kind: KindObject, Members: NewTable(boolParam("include_usage"), boolParam("continuous_usage_stats"))},
		integerParam("n", 1, int64(l.N)),
		Param{Name: "best_of", Kind: KindInteger, Min: 1, Max: int64(l.N), About: fmt.Sprintf("n to %d; chats: equal to n", l.N)},
		integerParam("max_tokens", -1, most),
		integerParam("max_completion_tokens", -1, most),
		integerParam("min_tokens", 0, most),
		numberParam("temperature", 0, 2),
		numberParam("top_p", 0, 1),
		integerParam("top_k", -1, most),
		numberParam("min_p", 0, 1),
		numberParam("presence_penalty", -2, 2),
		numberParam("frequency_penalty", -2, 2),
		Param{Name: "repetition_penalty", Kind: KindNumber, Low: 0, Above: true, High: 10},
		Param{Name: "logit_bias", Kind: KindMap, Most: l.LogitBias, Items: &Param{Kind: KindNumber, Low: -100, High: 100}},
		Param{Name: "allowed_token_ids", Kind: KindList, Least: 1, Most: s.vocab, Items: &id},
		listParam("bad_words", l.BadWords, stop),
		Param{Name: "seed", Kind: KindInteger, Format: "int64"},
		eitherParam("stop", stop, listParam("", l.Stops, stop)),
		listParam("stop_token_ids", l.StopTokens, id),
		boolParam("include_stop_str_in_output"),
		boolParam("ignore_eos"),
		boolParam("skip_special_tokens"),
		boolParam("add_special_tokens"),
		boolParam("return_tokens_as_token_ids"),
		integerParam("truncate_prompt_tokens", -1, most),
		textParam("kv_policy", l.PolicyBytes),
		boolParam("cache"),
		textParam("cache_salt", 512),
		textParam("context", 64),
		Param{Name: "speculate", Kind: KindText, Most: 16, Words: append([]string{""}, speculate.Modes...), Pattern: speculatePattern()},
		Param{Name: "priority", Kind: KindInteger, Format: "int32"},
		textParam("user", 1024),
		anyParam("metadata"),

		// What the output must fit; one of them.
		objectParam("response_format"),
		Param{Name: "structured_outputs", Kind: KindObject, Members: s.structureParams()},
		eitherParam("guided_json", objectParam(""), textParam("", 0), boolParam("")),
		textParam("guided_regex", l.GrammarBytes),
		listParam("guided_choice", 1<<16, textParam("", 0)),
		textParam("guided_grammar", l.GrammarBytes),
		textParam("guided_whitespace_pattern", l.GrammarBytes),
		textParam("guided_decoding_backend", 256),
		textParam("grammar", l.GrammarBytes),
		eitherParam("json_schema", objectParam(""), textParam("", 0)),
	)
}

// structureParams are the members of structured_outputs.
func (s *Service) structureParams() *Table {
	most := s.cfg.Limits.GrammarBytes
	return NewTable(anyParam("json"), boolParam("json_object"), textParam("regex", most), listParam("choice", 1<<16, textParam("", 0)),
		textParam("grammar", most), anyParam("structural_tag"), boolParam("disable_any_whitespace"), boolParam("any_order"),
		boolParam("disable_additional_properties"), textParam("whitespace_pattern", most), boolParam("disable_fallback"))
}

// speculatePattern is a mode with a number of drafts.
func speculatePattern() string {
	var modes, numbers []string
	for _, m := range speculate.Modes {
		if m != string(speculate.Off) {
			modes = append(modes, m)
		}
	}
	for n := range speculate.Most {
		numbers = append(numbers, strconv.Itoa(n+1))
	}
	return "^(" + strings.Join(modes, "|") + "):(" + strings.Join(numbers, "|") + ")$"
}

// toolParams are those of a request whose tools are OpenAI's.
func toolParams() []Param {
	return []Param{listParam("tools", maxTools, objectParam("")), eitherParam("tool_choice", wordsParam("", "none", "auto", "required", "any"), objectParam("")), boolParam("parallel_tool_calls")}
}

// conversationParams are how a chat is rendered.
func (s *Service) conversationParams() []Param {
	return []Param{listParam("messages", s.cfg.Limits.Messages, objectParam("")), boolParam("add_generation_prompt"), boolParam("continue_final_message"),
		objectParam("chat_template_kwargs"), boolParam("enable_thinking"), textParam("reasoning_effort", 64), objectParam("reasoning")}
}
