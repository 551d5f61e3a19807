package generate

import (
	"encoding/json"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// refused lists parameters of other servers that would change the answer. They are a 400 that
// names them, unless the value means "off". Other unknown parameters are ignored, and named in a
// header.
var refused = []struct {
	name string
	off  func(json.RawMessage) bool
	why  string
}{
	{"functions", jsonbody.EmptyValue, "use tools"},
	{"function_call", jsonbody.OneOf(`"none"`), "use tool_choice"},
	{"audio", jsonbody.EmptyValue, "audio is not supported"},
	{"modalities", jsonbody.OneOf(`["text"]`), "only [\"text\"] is supported"},
	{"suffix", jsonbody.OneOf(`""`), "insertion is not supported"},
	{"use_beam_search", jsonbody.OneOf(`false`), "beam search is not supported"},
	{"length_penalty", jsonbody.OneOf(`1`, `1.0`), "beam search is not supported"},
	{"early_stopping", jsonbody.OneOf(`false`), "beam search is not supported"},
	{"logits_processors", jsonbody.EmptyValue, "custom processors are not supported"},
	{"prompt_logprobs", never, "use /v1/completions with echo and logprobs"},
	{"detokenize", jsonbody.OneOf(`true`), "text is always produced"},
	{"chat_template", never, "templates come with the model, not with the request"},
	{"documents", jsonbody.EmptyValue, "it is not supported"},
	{"mm_processor_kwargs", jsonbody.EmptyValue, "only text is supported"},
	{"return_token_ids", jsonbody.OneOf(`false`), "use return_tokens_as_token_ids"},
	{"prompt_embeds", never, "only text and token ids are supported"},
}

// without lists parameters without effect here, and the values that ask for none. Other values
// are ignored, and named in a header.
var without = []struct {
	name string
	off  func(json.RawMessage) bool
}{{"store", jsonbody.OneOf(`false`)}, {"verbosity", jsonbody.OneOf(`"medium"`)}}

func refuse(f *jsonbody.Object) {
	for _, w := range without {
		if v := f.Raw[w.name]; v != nil && w.off(v) {
			f.Read[w.name] = true
		}
	}
	if f.Table.Has("tools") {
		f.Ignore("tools", "tool_choice")
	} else {
		for _, name := range [...]string{"tools", "tool_choice"} {
			if v := f.Unlisted(name); v != nil && !jsonbody.EmptyValue(v) && string(v) != `"none"` && string(f.Unlisted("tool_choice")) != `"none"` {
				f.Fail(apierr.InvalidCode(name, "unsupported_parameter", "'%s' is not supported here: tools are for chats.", name))
				return
			}
		}
	}
	for _, r := range refused {
		if v := f.Unlisted(r.name); v != nil && !r.off(v) && !unused(f, r.name) {
			f.Fail(apierr.InvalidCode(r.name, "unsupported_parameter", "'%s' is not supported with this value: %s.", r.name, r.why))
			return
		}
	}
}

// Ignored names the parameters that have no effect, which a strict server refuses.
func (s *Service) Ignored(f *jsonbody.Object) []string {
	names := f.Unread()
	if len(names) > 0 && s.Config.Strict {
		f.Fail(apierr.InvalidCode(names[0], "unsupported_parameter",
			"'%s' is unknown, and this server refuses unknown parameters.", names[0]))
	}
	return names
}

// CheckServerTools refuses tools that a server would run, where the server is strict.
func (s *Service) CheckServerTools(f *jsonbody.Object, places []string) {
	if len(places) > 0 && s.Config.Strict {
		f.Fail(apierr.InvalidCode(places[0], "unsupported_parameter",
			"'%s' is of a kind that servers run themselves, which this one does not.", places[0]))
	}
}

// unused: functions that must not be called change nothing.
func unused(f *jsonbody.Object, name string) bool {
	return name == "functions" && string(f.Unlisted("function_call")) == `"none"`
}

func never(json.RawMessage) bool { return false }
