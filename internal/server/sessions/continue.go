package sessions

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// ErrTemplate means that a chat template does not allow a session to continue.
var ErrTemplate = errors.New("the chat template cannot continue a session here")

// Render renders a conversation. turn is the end of the prompt, in which the answer goes on.
type Render func(engine.Conversation) (prompt []engine.Segment, turn string, err error)

// Continue renders the part of a chat after its last answer: the end of that answer's message, and the
// new messages. history ends with the answer. The tokens of the history do not change: an answer keeps
// those that the model wrote, and its text is not encoded again.
//
// Continue renders the whole conversation with a mark in place of the last answer, and returns the text
// after the mark. Templates write calls after the content. So for an answer with calls it renders once
// without the new messages, to find where they begin.
func Continue(render Render, c engine.Conversation, history []engine.Message) (prompt []engine.Segment, turn string, err error) {
	added, last := c.Messages, len(history)-1
	if last < 0 || history[last].Role != "assistant" {
		return nil, "", fmt.Errorf("%w: the session does not end with an answer", ErrTemplate)
	}
	mark := unused(slices.Concat(history, added))
	marked := slices.Clone(history)
	marked[last] = engine.Message{Role: "assistant", Content: mark}
	calls := history[last].Calls != nil
	before := c
	before.AddGenerationPrompt = false
	if !calls {
		c.Messages = slices.Concat(marked, added)
		if prompt, turn, err = render(c); err != nil {
			return nil, "", err
		}
		prompt, err = after(prompt, mark)
		return prompt, turn, err
	}
	c.Messages, before.Messages = slices.Concat(history, added), history
	if prompt, turn, err = render(c); err != nil {
		return nil, "", err
	}
	old, _, err := render(before)
	if err != nil {
		return nil, "", err
	}
	before.Messages = marked
	end, _, err := render(before)
	if err != nil {
		return nil, "", err
	}
	if end, err = after(end, mark); err != nil {
		return nil, "", err
	}
	if text := join(old); !strings.HasPrefix(join(prompt), text) || !strings.HasSuffix(text, join(end)) {
		return nil, "", fmt.Errorf("%w: after calls it renders the earlier messages in another way", ErrTemplate)
	}
	return append(end, cut(prompt, len(join(old)))...), turn, nil
}

// unused returns a word that no message contains.
func unused(list []engine.Message) string {
	text, err := json.Marshal(list)
	for n := 0; ; n++ {
		if word := fmt.Sprintf("shoalturn%d", n); err != nil || !strings.Contains(string(text), word) {
			return word + "x" // so that it does not begin a longer one
		}
	}
}

// after returns the text after the only mark.
func after(prompt []engine.Segment, mark string) ([]engine.Segment, error) {
	text := join(prompt)
	at := strings.Index(text, mark)
	if at < 0 || strings.Count(text, mark) > 1 {
		return nil, fmt.Errorf("%w: it renders the last answer %d times instead of once", ErrTemplate, strings.Count(text, mark))
	}
	return cut(prompt, at+len(mark)), nil
}

func join(list []engine.Segment) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s.Text)
	}
	return b.String()
}

// cut returns the text after the first n bytes.
func cut(list []engine.Segment, n int) (out []engine.Segment) {
	for _, s := range list {
		skip := min(n, len(s.Text))
		n -= skip
		if s.Text = s.Text[skip:]; s.Text != "" {
			out = append(out, s)
		}
	}
	return out
}
