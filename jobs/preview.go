package jobs

import (
	"encoding/json"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/api"
	"github.com/shoal-llm/shoal/jobs/journal"
)

const (
	previewRunes  = 120 // of a prompt
	previewTokens = 32  // of an answer
)

// promptPreview is the beginning of what a request asks: its prompt, or its newest message of a
// user. It is "" where that is no text (token ids), or the body has another form.
func promptPreview(body json.RawMessage) string {
	var b struct {
		Prompt   json.RawMessage `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
		Input    json.RawMessage `json:"input"`
	}
	if json.Unmarshal(body, &b) != nil {
		return ""
	}
	for _, field := range []json.RawMessage{b.Prompt, b.Messages, b.Input} {
		if field != nil {
			return begin(textOf(field))
		}
	}
	return ""
}

// textOf is the text of a prompt, of the first of several, of content in parts, or of the newest
// message of a user.
func textOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return ""
	}
	if json.Unmarshal(list[0], &text) == nil {
		return text
	}
	newest := ""
	for _, item := range list {
		var m struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			Text    string          `json:"text"`
		}
		if json.Unmarshal(item, &m) != nil {
			return ""
		}
		switch {
		case m.Text != "":
			return m.Text
		case m.Role == "user" && m.Content != nil:
			newest = textOf(m.Content)
		}
	}
	return newest
}

// begin cuts a text to previewRunes, in one line.
func begin(text string) string {
	var b strings.Builder
	n, space := 0, false
	for _, r := range text {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			space = n > 0
			continue
		}
		if n >= previewRunes {
			b.WriteRune('…')
			break
		}
		if space {
			b.WriteByte(' ')
			n, space = n+1, false
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}

// answerBegins adds the tokens of a record to the first ones of a job's first choice.
func answerBegins(ids []int32, r *journal.Record) []int32 {
	if len(ids) >= previewTokens {
		return ids
	}
	_, events, err := DecodeTokens(r.Payload)
	if err != nil { // reading the job reports the damage
		return ids
	}
	for _, e := range events {
		if e.Choice == 0 && e.Event.Token != api.NoToken && len(ids) < previewTokens {
			ids = append(ids, e.Event.Token)
		}
	}
	return ids
}
