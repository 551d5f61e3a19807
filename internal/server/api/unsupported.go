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
	{"functions", emptyValue, "use tools"},
	{"function_call", oneOf(`"none"`), "use tool_choice"},
	{"audio", emptyValue, "audio is not supported"},
	{"modalities", oneOf(`["text"]`), "only [\"text\"] is supported"},
	{"suffix", oneOf(`""`), "insertion is not supported"},
	{"use_beam_search", oneOf(`false`), "beam search is not supported"},
	{"length_penalty", oneOf(`1`, `1.0`), "beam search is not supported"},
	{"early_stopping", oneOf(`false`), "beam search is not supported"},
	{"logits_processors", emptyValue, "custom processors are not supported"},
	{"prompt_logprobs", never, "use /v1/completions with echo and logprobs"},
	{"detokenize", oneOf(`true`), "text is always produced"},
	{"chat_template", never, "templates come with the model, not with the request"},
	{"documents", emptyValue, "it is not supported"},
	{"mm_processor_kwargs", emptyValue, "only text is supported"},
	{"return_token_ids", oneOf(`false`), "use return_tokens_as_token_ids"},
	{"prompt_embeds", never, "only text and token ids are supported"},
}

// without are parameters that never have an effect here, and the values that ask for none. Any
// other value is ignored, and named in a header: the answer is text all the same.
var without = []struct {
	name string
	off  func(json.RawMessage) bool
}{{"store", oneOf(`false`)}, {"verbosity", oneOf(`"medium"`)}}

func refuse(f *fields) {
	for _, w := range without {
		if v := f.raw[w.name]; v != nil && w.off(v) {
			f.read[w.name] = true
		}
	}
	if f.table.Has("tools") {
		f.ignore("tools", "tool_choice")
	} else {
		for _, name := range [...]string{"tools", "tool_choice"} {
			if v := f.unlisted(name); v != nil && !emptyValue(v) && string(v) != `"none"` && string(f.unlisted("tool_choice")) != `"none"` {
				f.fail(invalidCode(name, "unsupported_parameter", "'%s' is not supported here: tools are for chats.", name))
				return
			}
		}
	}
	for _, r := range refused {
		if v := f.unlisted(r.name); v != nil && !r.off(v) && !unused(f, r.name) {
			f.fail(invalidCode(r.name, "unsupported_parameter", "'%s' is not supported with this value: %s.", r.name, r.why))
			return
		}
	}
}

// ignored names the parameters that have no effect, which a strict server refuses.
func (s *Service) ignored(f *fields) []string {
	names := f.unread()
	if len(names) > 0 && s.cfg.Strict {
		f.fail(invalidCode(names[0], "unsupported_parameter", "'%s' is not known here, and this server refuses what it does not know.", names[0]))
	}
	return names
}

// checkServerTools refuses tools that a server would run, where the server is strict.
func (s *Service) checkServerTools(f *fields, places []string) {
	if len(places) > 0 && s.cfg.Strict {
		f.fail(invalidCode(places[0], "unsupported_parameter", "'%s' is of a kind that servers run themselves, which this one does not.", places[0]))
	}
}

// unused: functions that must not be called change nothing.
func unused(f *fields, name string) bool {
	return name == "functions" && string(f.unlisted("function_call")) == `"none"`
}

func never(json.RawMessage) bool { return false }
