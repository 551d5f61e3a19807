package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestSpeculateTexts checks that a shape has replies for every kind of text, and that an edited file
// differs only in the new name and the new line.
func TestSpeculateTexts(t *testing.T) {
	m, err := newFixtures(ui.Quiet(t.Context()), "llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"chat", "again", "code", "edit", "retrieval", "random"} {
		text, err := m.text(nil, nil, kind)
		if err != nil || len(text.Prompts) != replayedTexts || len(text.Replay) != replayedTexts {
			t.Fatalf("%s: %d prompts, %d to replay: %v", kind, len(text.Prompts), len(text.Replay), err)
		}
		for i, replay := range text.Replay {
			if len(text.Prompts[i]) < 10 || len(replay) < 16 {
				t.Errorf("%s %d: a prompt of %d tokens, %d to replay", kind, i, len(text.Prompts[i]), len(replay))
			}
			if i > 0 && slices.Equal(replay, text.Replay[i-1]) {
				t.Errorf("%s %d replays the same text as %d", kind, i, i-1)
			}
		}
	}
	code := "func total(xs []int) int {\n\tsum := 0\n\tfor _, x := range xs {\n\t\tsum += x // the total\n\t}\n\treturn total(nil)\n}\n"
	ask, edited := edit(code)
	if !strings.Contains(ask, "Rename total to myTotal") || strings.Contains(edited, "total") ||
		strings.Count(edited, "\n") != strings.Count(code, "\n")+1 {
		t.Errorf("%s\n%s", ask, edited)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(edited, "\n"), func(l string) bool { return strings.Contains(l, "TODO") })
	if back := strings.ReplaceAll(strings.Join(lines, ""), "myTotal", "total"); back != code {
		t.Errorf("the edited file, edited back:\n%s", back)
	}
}
