package modelfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// pythonWords are the non-JSON numbers that Python's json module writes. Each is replaced by a JSON
// number that no Go type can hold, so decoding it always fails.
var pythonWords = []struct{ word, number string }{{"NaN", "1e99999"}, {"Infinity", "2e99999"}, {"-Infinity", "-2e99999"}}

// JSON replaces the bare words NaN, Infinity and -Infinity in data by numbers out of range, so that
// encoding/json accepts the file. Only a reader that uses such a value gets an error; see Words.
// Without such words it returns data itself.
func JSON(data []byte) []byte {
	if !bytes.Contains(data, []byte("NaN")) && !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	var out []byte
	copied := 0 // data[:copied] is in out
	for at := 0; at < len(data); at++ {
		switch data[at] {
		case '"':
			for at++; at < len(data) && data[at] != '"'; at++ {
				if data[at] == '\\' {
					at++
				}
			}
		case 'N', 'I', '-':
			for _, w := range pythonWords {
				if end := at + len(w.word); bytes.HasPrefix(data[at:], []byte(w.word)) && isValue(data, at, end) {
					out = append(append(out, data[copied:at]...), w.number...)
					copied, at = end, end-1
					break
				}
			}
		}
	}
	return append(out, data[copied:]...)
}

// isValue reports whether data[from:to] is a JSON value, not a name or part of another word.
func isValue(data []byte, from, to int) bool {
	return (from == 0 || strings.IndexByte(":,[ \t\r\n", data[from-1]) >= 0) &&
		(to == len(data) || strings.IndexByte(",]} \t\r\n", data[to]) >= 0) &&
		!bytes.HasPrefix(bytes.TrimLeft(data[to:], " \t\r\n"), []byte(":"))
}

// Words converts the numbers that JSON wrote back to Python's words, in an error text.
func Words(text string) string {
	for i := len(pythonWords) - 1; i >= 0; i-- { // -Infinity before Infinity
		text = strings.ReplaceAll(text, pythonWords[i].number, pythonWords[i].word)
	}
	return text
}

const endsEarly = "unexpected end of JSON input" // the text of json.SyntaxError

// Unmarshal is json.Unmarshal of JSON(data). The error of a text that ends early, as a file does whose copy was
// interrupted, describes how to replace the file.
func Unmarshal(data []byte, v any) error {
	err := json.Unmarshal(JSON(data), v)
	if cut, ok := errors.AsType[*json.SyntaxError](err); ok && cut.Error() == endsEarly {
		return fmt.Errorf("the file is incomplete after %d bytes; copy it again, or remove it and pull it: %w", len(data), err)
	}
	return err
}
