package toolcall

import (
	"strings"
	"testing"
)

// Spans do not depend on how the text is cut, and together they are the text.
func TestChannels(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "Hi.": "Hi.", " \n": "", "a <| b": "a <| b", "<|start": "<|start",
		"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>": "Hi.",
		"<|channel|>final<|message|>a<|e<|end|>\n<|start|>assistant<|channel|>analysis<|message|>hm<|e":     "a<|e",
		"to=functions.f<|channel|>commentary<|message|>{}<|call|>":                                          "to=functions.f{}",
		"<|channel|>analysis": "",
		"<|channel|>" + strings.Repeat("x", 2*maxHarmonyHeader): "channel|>" + strings.Repeat("x", 2*maxHarmonyHeader),
	} {
		for _, size := range []int{1, 2, 7, len(text) + 1} {
			all, answer := spansOf(text, size)
			if all != text || answer != want {
				t.Errorf("%.100q in pieces of %d: answer %.100q, want %.100q; all %.100q", text, size, answer, want, all)
			}
		}
	}
}

// spansOf cuts a text into pieces of a size and returns the text of all spans, and that of the answer.
func spansOf(text string, size int) (all, answer string) {
	var c Channels
	var spans []Span
	for left := text; left != ""; left = left[min(size, len(left)):] {
		spans = append(spans, c.Push(left[:min(size, len(left))])...)
	}
	for _, s := range append(spans, c.Flush()...) {
		if all += s.Text; s.Answer {
			answer += s.Text
		}
	}
	return all, answer
}
