package tokenizer

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// specialTokens are the special tokens in a tokenizer's configuration, as transformers 5 reads
// them. Tokenizer, chat templates and /tokenizer_info use them.
type specialTokens struct {
	named map[string]string // bos_token and so on, and the model's own, for example image_token
	extra []string          // additional ones without names
}

// specialNames are the standard names. Others are specific to a model.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// readSpecials merges the members of tokenizer_config.json and special_tokens_map.json. The latter
// take precedence, even if null, unless the former have added_tokens_decoder. Names are the
// standard ones, any other that ends with _token, and those of extra_special_tokens if it is an
// object.
func readSpecials(config, specials map[string]json.RawMessage) (s specialTokens, err error) {
	all, files := maps.Clone(config), map[string]string{}
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	if (node{raw: config["added_tokens_decoder"]}).null() {
		for key, raw := range specials {
			all[key], files[key] = raw, specialsFile
		}
	}
	at := func(key string) string {
		if files[key] != "" {
			return files[key] + ": " + key
		}
		return configFile + ": " + key
	}
	s.named = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		usual := slices.Contains(specialNames, key)
		if !usual && !strings.HasSuffix(key, "_token") {
			continue
		}
		if text, ok := tokenText(all[key]); ok {
			s.name(key, text)
		} else if usual {
			return s, invalid(at(key), "is neither a string nor an object with 'content'")
		}
	}
	for _, key := range []string{"model_specific_special_tokens", "extra_special_tokens", "additional_special_tokens"} {
		n := node{raw: all[key]}
		var named map[string]json.RawMessage
		var list []json.RawMessage
		switch {
		case n.null():
		case json.Unmarshal(n.raw, &named) == nil:
			for name, raw := range named {
				text, ok := tokenText(raw)
				if !ok {
					return s, invalid(at(key)+"."+name, "is neither a string nor an object with 'content'")
				}
				s.name(name, text)
			}
		case json.Unmarshal(n.raw, &list) == nil:
			for _, raw := range list {
				text, ok := tokenText(raw)
				if !ok {
					return s, invalid(at(key), "has an element that is neither a string nor an object with 'content'")
				}
				if text != "" && !slices.Contains(s.extra, text) {
					s.extra = append(s.extra, text)
				}
			}
		default:
			return s, invalid(at(key), "is neither a list of tokens nor an object of named ones")
		}
	}
	return s, nil
}

func (s *specialTokens) name(name, text string) {
	if text != "" {
		s.named[name] = text
	}
}

// tokenText reads a token in the form of a string, {"content": string}, or null (none).
func tokenText(raw json.RawMessage) (text string, ok bool) {
	if (node{raw: raw}).null() {
		return "", true
	}
	var long struct {
		Content *string `json:"content"`
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	if json.Unmarshal(raw, &long) == nil && long.Content != nil {
		return *long.Content, true
	}
	return "", false
}

// Info returns tokenizer_config.json with all special tokens as named strings, from whichever file
// they come.
func (f Files) Info() (json.RawMessage, error) {
	s, err := f.settings()
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for key, raw := range s.Raw {
		out[key] = raw
	}
	for _, name := range specialNames {
		if _, given := out[name]; given {
			out[name] = nil
		}
	}
	for name, text := range s.Named {
		out[name] = text
	}
	return json.Marshal(out)
}
