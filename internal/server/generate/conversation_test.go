package generate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Turns that a template refuses are joined: one per role in a row, one system message.
func TestMergedTurns(t *testing.T) {
	got := merged([]engine.Message{{Role: "system", Content: "s"}, {Role: "system", Content: "d"},
		{Role: "user", Content: "a"}, {Role: "user", Content: "b"},
		{Role: "system", Content: "now"}, {Role: "assistant", Content: "x"},
		{Role: "assistant", Empty: true, Calls: json.RawMessage("[]")}, {Role: "tool", Content: "1"}, {Role: "tool", Content: "2"}})
	want := "system:s\n\nd user:a\n\nb\n\nnow assistant:x\n\n[] tool:1 tool:2"
	var out []string
	for _, m := range got {
		out = append(out, m.Role+":"+m.Content+string(m.Calls))
	}
	if strings.Join(out, " ") != want || got[2].Empty {
		t.Errorf("%q, want %q", strings.Join(out, " "), want)
	}
}
