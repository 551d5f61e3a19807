package modelfile

import (
	"bytes"
	"encoding/json"
)

// pythonWords are the numbers that Python's json module writes and JSON does not have.
var pythonWords = []string{"NaN", "Infinity", "-Infinity"}

// JSON returns data with the bare words NaN, Infinity and -Infinity as strings, so that
// encoding/json accepts the file. A reader that uses such a value as a number reports the
// word; other readers never see it. Without such words the result is data itself.
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
			for _, word := range pythonWords {
				if bytes.HasPrefix(data[at:], []byte(word)) {
					out = append(append(out, data[copied:at]...), '"')
					out = append(append(out, word...), '"')
					copied = at + len(word)
					at = copied - 1
					break
				}
			}
		}
	}
	return append(out, data[copied:]...)
}

// Unmarshal is json.Unmarshal of JSON(data).
func Unmarshal(data []byte, v any) error { return json.Unmarshal(JSON(data), v) }
