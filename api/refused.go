package api

import "encoding/json"

// refused lists parameters that other servers know and that would change the
// answer here: silence would be a wrong answer, so they are a 400 that names
// them, unless the value means "off". Anything else
// unknown is ignored, and named in a header.
var refused = []struct {
	name string
	off  func(json.RawMessage) bool
	why  string
}{
	{"tools", emptyValue, "tool calling is not supported"},
	{"tool_choice", oneOf(`"none"`), "tool calling is not supported"},
	{"functions", emptyValue, "function calling is not supported"},
	{"function_call", oneOf(`"none"`), "function calling is not supported"},
	{"audio", emptyValue, "audio is not supported"},
	{"modalities", oneOf(`["text"]`), "only [\"text\"] is supported"},
	{"web_search_options", never, "web search is not supported"},
	{"reasoning_effort", oneOf(`"none"`), "reasoning control is not supported"},
	{"verbosity", oneOf(`"medium"`), "it is not supported"},
	{"store", oneOf(`false`), "responses are not stored"},
	{"suffix", oneOf(`""`), "insertion is not supported"},
	{"use_beam_search", oneOf(`false`), "beam search is not supported"},
	{"length_penalty", oneOf(`1`, `1.0`), "beam search is not supported"},
	{"early_stopping", oneOf(`false`), "beam search is not supported"},
	{"bad_words", emptyValue, "use logit_bias"},
	{"allowed_token_ids", never, "use logit_bias"},
	{"logits_processors", emptyValue, "custom processors are not supported"},
	{"prompt_logprobs", never, "use /v1/completions with echo and logprobs"},
	{"truncate_prompt_tokens", never, "prompts are never cut; shorten it yourself"},
	{"detokenize", oneOf(`true`), "text is always produced"},
	{"chat_template", never, "templates come with the model, not with the request"},
	{"documents", emptyValue, "it is not supported"},
	{"mm_processor_kwargs", emptyValue, "only text is supported"},
	{"return_token_ids", oneOf(`false`), "use return_tokens_as_token_ids"},
	{"prompt_embeds", never, "only text and token ids are supported"},
}

func refuse(f *fields) {
	for _, r := range refused {
		if v := f.get(r.name); v != nil && !r.off(v) && !unused(f, r.name) {
			f.fail(invalidCode(r.name, "unsupported_parameter", "'%s' is not supported with this value: %s.", r.name, r.why))
			return
		}
	}
}

// ignored names the parameters that have no effect, which a strict server refuses.
func (s *Server) ignored(f *fields) ([]string, *apiError) {
	names := f.unread()
	if len(names) > 0 && s.cfg.Strict {
		return nil, invalidCode(names[0], "unsupported_parameter", "'%s' is not known here, and this server refuses what it does not know.", names[0])
	}
	return names, nil
}

// unused: tools that must not be called change nothing.
func unused(f *fields, name string) bool {
	choice := map[string]string{"tools": "tool_choice", "functions": "function_call"}[name]
	return choice != "" && string(f.get(choice)) == `"none"`
}

func never(json.RawMessage) bool { return false }

func emptyValue(v json.RawMessage) bool { return oneOf(`[]`, `{}`, `""`, `false`)(v) }

func oneOf(values ...string) func(json.RawMessage) bool {
	return func(v json.RawMessage) bool {
		c := compactJSON(v)
		for _, x := range values {
			if c == x {
				return true
			}
		}
		return false
	}
}
