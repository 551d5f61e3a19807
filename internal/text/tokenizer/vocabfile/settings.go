package vocabfile

import (
	"encoding/json"
	"strings"
)

// Settings are those of tokenizer_config.json and special_tokens_map.json that decide how a file
// without a tokenizer.json is read.
type Settings struct {
	Raw   map[string]json.RawMessage // members of tokenizer_config.json
	Named map[string]string          // special tokens, for example "cls_token"
}

// class is tokenizer_class without "Fast".
func (s Settings) class() (name string, err error) {
	raw, ok := s.Raw["tokenizer_class"]
	if !ok || string(raw) == "null" {
		return "", nil
	}
	if json.Unmarshal(raw, &name) != nil {
		return "", Invalid("tokenizer_config.json: tokenizer_class", "is not a string")
	}
	return strings.TrimSuffix(name, "Fast"), nil
}

// flag returns a boolean, or nil if it is missing or null.
func (s Settings) flag(name string) (v *bool, err error) {
	if raw, ok := s.Raw[name]; ok && json.Unmarshal(raw, &v) != nil {
		return nil, Invalid("tokenizer_config.json: "+name, "is not true or false")
	}
	return v, nil
}

// token returns a special token, or def.
func (s Settings) token(name, def string) string {
	if t := s.Named[name]; t != "" {
		return t
	}
	return def
}
