package modelfile

import (
	"bytes"
	"encoding/json"
	"strings"
)

// pythonWords are the numbers that Python's json module writes and JSON does not have, each with
// a JSON number that no Go type holds: decoding it fails, whatever the reader wants.
var pythonWords = []struct{ word, number string }{{"NaN", "1e99999"}, {"Infinity", "2e99999"}, {"-Infinity", "-2e99999"}}

// JSON returns data with numbers out of range for the bare words NaN, Infinity and -Infinity,
// so that encoding/json accepts the file. A reader that uses such a value gets an error, see
// Words; other readers never see it. Without such words the result is data itself.
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

// isValue tells whether data[from:to] stands where JSON has a value, not a name or part of
// another word.
func isValue(data []byte, from, to int) bool {
	return (from == 0 || strings.IndexByte(":,[ \t\r\n", data[from-1]) >= 0) &&
		(to == len(data) || strings.IndexByte(",]} \t\r\n", data[to]) >= 0) &&
		!bytes.HasPrefix(bytes.TrimLeft(data[to:], " \t\r\n"), []byte(":"))
}

// Words returns a text, as of an error, with Python's words for the numbers that JSON writes.
func Words(text string) string {
	for i := len(pythonWords) - 1; i >= 0; i-- { // -Infinity before Infinity
		text = strings.ReplaceAll(text, pythonWords[i].number, pythonWords[i].word)
	}
	return text
}

// Unmarshal is json.Unmarshal of JSON(data).
func Unmarshal(data []byte, v any) error { return json.Unmarshal(JSON(data), v) }
