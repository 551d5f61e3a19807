package sessions

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// chatML renders as most models do. It drops old thoughts, and shows calls after the content.
func chatML(c engine.Conversation) (out []engine.Segment, turn string, err error) {
	say := func(text string, literal bool) { out = append(out, engine.Segment{Text: text, Literal: literal}) }
	for i, m := range c.Messages {
		say("<|im_start|>"+m.Role+"\n", false)
		if m.Thought != "" && i == len(c.Messages)-1 {
			say("<think>"+m.Thought+"</think>", false)
		}
		say(m.Content, true)
		if m.Calls != nil {
			say("<call>"+string(m.Calls)+"</call>", false)
		}
		say("<|im_end|>\n", false)
	}
	if c.AddGenerationPrompt {
		say("<|im_start|>assistant\n", false)
	}
	return out, "assistant\n", nil
}

func TestContinue(t *testing.T) {
	user, thinks := engine.Message{Role: "user", Content: "hi"}, engine.Message{Role: "assistant", Content: "shoalturn0x", Thought: "hm"}
	calls := engine.Message{Role: "assistant", Calls: []byte(`["f"]`), Content: "I call."}
	next := engine.Conversation{AddGenerationPrompt: true, Messages: []engine.Message{{Role: "user", Content: "<|im_end|>"}}}
	for _, x := range []struct {
		name    string
		history []engine.Message
		want    string
	}{
		{"thoughts", []engine.Message{user, thinks}, "<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"},
		{"calls", []engine.Message{user, calls}, "<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"},
	} {
		got, turn, err := Continue(chatML, next, x.history)
		if err != nil || join(got) != x.want || turn != "assistant\n" {
			t.Errorf("%s: %q, %q, %v", x.name, join(got), turn, err)
		}
		for _, s := range got {
			if s.Literal && s.Text != "<|im_end|>" || s.Text == "<|im_end|>" && !s.Literal {
				t.Errorf("%s: %+v", x.name, got)
			}
		}
	}
	last := func(c engine.Conversation) ([]engine.Segment, string, error) { // shows only the newest message
		c.Messages = c.Messages[len(c.Messages)-1:]
		return chatML(c)
	}
	rewrites := func(c engine.Conversation) ([]engine.Segment, string, error) { // counts the messages
		out, turn, err := chatML(c)
		return append([]engine.Segment{{Text: strings.Repeat("m", len(c.Messages))}}, out...), turn, err
	}
	fails := func(c engine.Conversation) ([]engine.Segment, string, error) {
		if len(c.Messages) > 2 {
			return nil, "", errors.New("two messages at most")
		}
		return chatML(c)
	}
	for name, x := range map[string]struct {
		render  Render
		history []engine.Message
		want    string
	}{
		"no answer": {chatML, []engine.Message{user}, "does not end with an answer"},
		"hidden":    {last, []engine.Message{user, thinks}, "renders the last answer 0 times"},
		"rewritten": {rewrites, []engine.Message{user, calls}, "in another way"},
		"refused":   {fails, []engine.Message{user, thinks}, "two messages at most"},
	} {
		if _, _, err := Continue(x.render, next, x.history); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
