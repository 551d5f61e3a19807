package modelfile

import (
	"strings"
	"testing"
)

// A file whose copy was interrupted: the error reports an incomplete file. Another mistake does not.
func TestUnmarshalOfAnIncompleteFile(t *testing.T) {
	for text, incomplete := range map[string]bool{
		"": true, "{": true, `{"a": [1, 2`: true, `{"a": "b`: true, `{"a"}`: false, `{} {}`: false, `{"a": 1}`: false,
	} {
		var v map[string]any
		err := Unmarshal([]byte(text), &v)
		if got := err != nil && strings.Contains(err.Error(), "incomplete"); got != incomplete {
			t.Errorf("%q: error %v, want incomplete: %v", text, err, incomplete)
		}
	}
}
