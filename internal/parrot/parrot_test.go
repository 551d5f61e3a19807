package parrot

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TestWrite: the checkpoint loads, and the tokens of its script decode to the text.
func TestWrite(t *testing.T) {
	for _, s := range []Script{
		{Text: "hello there, \U0001F41F ok"},
		{Text: "日本\U0001F41F ok naïve", Bytes: true},
		{Text: "plan</think>\n\nhi", Special: []string{"</think>"}, Loop: true},
	} {
		dir := t.TempDir()
		if err := Write(dir, s); err != nil {
			t.Fatal(err)
		}
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := ck.Close(); err != nil {
			t.Fatal(err)
		}
		tok, err := tokenizer.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, line, err := s.vocabulary()
		if err != nil {
			t.Fatal(err)
		}
		ids := make([]int32, len(line))
		for i, id := range line {
			ids[i] = int32(id)
		}
		if got := tok.Decode(ids, false); got != s.Text {
			t.Errorf("%q decodes to %q", s.Text, got)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for _, s := range []Script{{}, {Text: "x"}, {Text: "aaaa"}, {Text: "a<|im_end|>b<|im_end|>c"}} {
		if Write(t.TempDir(), s) == nil {
			t.Errorf("%q was written", s.Text)
		}
	}
}
