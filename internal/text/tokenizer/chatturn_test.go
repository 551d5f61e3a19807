package tokenizer

import (
	"encoding/json"
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
