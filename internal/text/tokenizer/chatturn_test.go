package tokenizer

import (
	"encoding/json"
	"strings"
	"testing"
)

// The end of a prompt contains the template's text before an answer, and no user text.
func TestRenderTurn(t *testing.T) {
	c := chatLoad(t, "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content "+
		"}}</think>{% endif %}{{ m.content | trim }}[end]\n{% endfor %}{% if add_generation_prompt %}[assistant]<think>\n{% endif %}", nil)
	user := Message{Role: "user", Content: "is <think> a tag?"}
	for _, x := range []struct {
		messages []Message
		o        RenderOptions
		want     string
	}{
		{[]Message{user}, RenderOptions{AddGenerationPrompt: true}, "[end]\n[assistant]<think>\n"},
		{[]Message{user}, RenderOptions{}, "[end]\n"},
		{[]Message{user, {Role: "assistant", Content: "<think>half"}}, RenderOptions{ContinueFinal: true}, "]<think>half"},
		{[]Message{user, {Role: "assistant", Content: "so", Extra: json.RawMessage(`{"reasoning_content":"hm"}`)}}, RenderOptions{ContinueFinal: true}, "</think>so"},
	} {
		if _, turn, err := c.RenderTurn(x.messages, x.o); err != nil || turn != x.want {
			t.Errorf("%+v: %q, %v, want %q", x.messages, turn, err, x.want)
		}
	}
}

// A message that is continued is cut off at its own end, not at the same text in the marks that follow it.
func TestContinueTextOfMarks(t *testing.T) {
	c := chatLoad(t, chatML, nil)
	for _, text := range []string{"<", "end", "|", "im_", "e", "d|", "a <|im_end|>", " > "} {
		messages := []Message{{Role: "user", Content: text}, {Role: "assistant", Content: text}}
		r, turn, err := c.RenderTurn(messages, RenderOptions{ContinueFinal: true})
		const head = "<|im_start|>assistant\n"
		if want := "<|im_start|>user\n" + text + "<|im_end|>\n" + head + text; err != nil || r.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, r.String(), err, want)
		}
		if !strings.HasSuffix(turn, strings.TrimSpace(text)) && !strings.HasSuffix(turn, text) {
			t.Errorf("%q: the turn is %q", text, turn)
		}
	}
}
