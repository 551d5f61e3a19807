package toolcall

import (
	"encoding/json"
	"math/big"
	"strings"
)

// Tool is a function that may be called. Schema has the parameter types, for families that write
// every value as text; nil: all parameters are strings.
type Tool struct{ Schema Schema }

// Schema describes the parameters of a function.
type Schema interface {
	// Allows reports whether a parameter may have a kind: null, boolean, string, array, object,
	// integer, or number (not an integer).
	Allows(name, kind string) bool
	// Lists reports whether a parameter's enumeration or constant contains a JSON value.
	Lists(name, value string) bool
}

// typed converts the text of a parameter to JSON. If its schema allows a string, it stays a string,
// except for null where null is allowed, and for values of an enumeration. Otherwise it is parsed
// as JSON or Python.
func typed(s Schema, name, text string) string {
	if s == nil {
		return quoted(text)
	}
	trimmed := strings.TrimSpace(text)
	value := reading(trimmed)
	fits := fitting(s, name, value)
	switch {
	case !s.Allows(name, "string"):
		return forced(s, name, trimmed, fits)
	case fits == "":
	case trimmed == "null", trimmed == "None", s.Lists(name, fits):
		return fits
	}
	return quoted(text)
}

// forced converts text where no string is allowed. fits is its parsed form as an allowed type, or "".
func forced(s Schema, name, text, fits string) string {
	var inner string
	switch word := strings.ToLower(text); {
	case fits != "":
		return fits
	case (word == "true" || word == "false") && s.Allows(name, "boolean"):
		return word
	case text == "" && s.Allows(name, "null"):
		return "null"
	case strings.HasPrefix(text, `"`) && json.Unmarshal([]byte(text), &inner) == nil: // 5 written as "5"
		if fits := fitting(s, name, reading(strings.TrimSpace(inner))); fits != "" {
			return fits
		}
	}
	if json.Valid([]byte(text)) {
		return text
	}
	return quoted(text)
}

// reading parses text as a JSON or Python value and returns JSON, or "".
func reading(text string) string {
	if text == "" || json.Valid([]byte(text)) {
		return text
	}
	switch text[0] {
	case '{', '[':
		var w writer
		if out, n, _ := w.take(text, true); w.closed() && n == len(text) {
			return out
		}
		return ""
	case '(':
		r := pyReader{s: text}
		if value, ok := r.value(0); ok && r.at == len(text) {
			return value
		}
		return ""
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r >= 0x80 || !wordy(byte(r)) }) {
		return ""
	}
	if value := literal(text); value[0] != '"' {
		return value
	}
	return ""
}

// fitting converts a value to a type that the parameter allows, or returns "". Integers have no
// point or exponent.
func fitting(s Schema, name, value string) string {
	if value == "" {
		return ""
	}
	kind := "number"
	switch value[0] {
	case '{':
		kind = "object"
	case '[':
		kind = "array"
	case '"':
		kind = "string"
	case 't', 'f':
		kind = "boolean"
	case 'n':
		kind = "null"
	}
	if kind != "number" {
		if s.Allows(name, kind) {
			return value
		}
		return ""
	}
	if s.Allows(name, "number") {
		return value
	}
	if exponent := strings.IndexAny(value, "eE"); s.Allows(name, "integer") && len(value) < 64 && (exponent < 0 || len(value)-exponent < 4) {
		if r, ok := new(big.Rat).SetString(value); ok && r.IsInt() {
			return r.Num().String()
		}
	}
	return ""
}
