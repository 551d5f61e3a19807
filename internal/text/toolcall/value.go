package toolcall

import (
	"encoding/json"
	"math/big"
	"strings"
)

// Tool is a function that may be called. Schema tells the types of its parameters to families
// whose calls write every value as text; nil: all are strings.
type Tool struct{ Schema Schema }

// Schema says what the parameters of a function may be.
type Schema interface {
	// Allows tells whether a parameter may be null, boolean, string, array or object, an
	// integer, or a number that is none.
	Allows(name, kind string) bool
	// Lists tells whether an enumeration or a constant for a parameter holds a value of JSON.
	Lists(name, value string) bool
}

// typed is the text of a parameter as JSON. Text stays text where its schema allows a string,
// unless it says null where null is allowed, or an enumeration holds what it reads as. Else it
// is read as JSON or as Python writes it.
func typed(s Schema, name, text string) string {
	if s == nil {
		return quoted(text)
	}
	trimmed := strings.TrimSpace(text)
	value := reading(trimmed)
	fits := fitting(s, name, value)
	switch {
	case !s.Allows(name, "string"):
		return forced(s, name, trimmed, value, fits)
	case fits == "":
	case trimmed == "null", trimmed == "None", s.Lists(name, fits):
		return fits
	}
	return quoted(text)
}

// forced reads text where no string is allowed. value is its reading, and fits that one as an
// allowed type, both "" when there is none.
func forced(s Schema, name, text, value, fits string) string {
	var inner string
	switch word := strings.ToLower(text); {
	case fits != "":
		return fits
	case (word == "true" || word == "false") && s.Allows(name, "boolean"):
		return word
	case text == "" && s.Allows(name, "null"):
		return "null"
	case strings.HasPrefix(text, `"`) && json.Unmarshal([]byte(text), &inner) == nil: // 5 written "5"
		if fits := fitting(s, name, reading(strings.TrimSpace(inner))); fits != "" {
			return fits
		}
	}
	if json.Valid([]byte(text)) {
		return text
	}
	return quoted(text)
}

// reading is text as a value of JSON, as JSON or Python writes it; "": it is none.
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

// fitting is a value as a type that a parameter may have, "" when none fits. Integers are
// written without a point or an exponent.
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
