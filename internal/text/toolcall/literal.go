package toolcall

import (
	"encoding/json"
	"math/big"
	"strings"
)

// literal converts a word of JSON, Python or JavaScript to JSON: a number, true, false or null.
// Other words become strings.
func literal(word string) string {
	if json.Valid([]byte(word)) {
		return word
	}
	switch word {
	case "True", "TRUE":
		return "true"
	case "False", "FALSE":
		return "false"
	case "None", "NULL", "Null", "nil", "undefined", "NaN", "nan", "Infinity", "-Infinity", "+Infinity", "inf", "-inf", "+inf":
		return "null" // JSON has no infinity
	}
	if n := number(word); n != "" {
		return n
	}
	return quoted(word)
}

// number converts a number in the syntax of Python, JavaScript or C to JSON, or returns "".
func number(word string) string {
	sign, s := "", strings.TrimPrefix(word, "+")
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	if s == "" || len(s) > 64 || s[0] != '.' && (s[0] < '0' || s[0] > '9') {
		return ""
	}
	if len(s) > 2 && s[0] == '0' && strings.IndexByte("xXoObB", s[1]) >= 0 {
		n, ok := new(big.Int).SetString(s, 0)
		if !ok {
			return ""
		}
		return sign + n.String()
	}
	s = strings.ReplaceAll(s, "_", "")
	whole, rest := s, ""
	if at := strings.IndexAny(s, ".eE"); at >= 0 {
		whole, rest = s[:at], s[at:]
	}
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if len(rest) > 0 && rest[0] == '.' && (len(rest) == 1 || rest[1] == 'e' || rest[1] == 'E') {
		rest = ".0" + rest[1:]
	}
	if n := sign + whole + rest; s != "." && json.Valid([]byte(n)) {
		return n
	}
	return ""
}

// quoted returns text as a JSON string.
func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // cannot fail for a string
	return strings.TrimSuffix(b.String(), "\n")
}
