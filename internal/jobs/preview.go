package jobs

import (
	"encoding/json"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/internal/server/vectors"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

const (
	previewRunes  = 120 // of a prompt
	previewTokens = 32  // of an answer
)

// promptPreview returns the start of a request's prompt, or of its newest user message. It is "" if
// that is not text (token ids) or the body has another form.
func promptPreview(endpoint string, body json.RawMessage) string {
	var b struct {
		Prompt   json.RawMessage `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
		Input    json.RawMessage `json:"input"`
		Query    json.RawMessage `json:"query"`
		Text     json.RawMessage `json:"text_1"`
	}
	if strictjson.Unmarshal(body, &b) != nil {
		return ""
	}
	fields := map[string]json.RawMessage{openai.EndpointCompletions: b.Prompt, openai.EndpointChat: b.Messages,
		openai.EndpointResponses: b.Input, vectors.EndpointEmbeddings: b.Input, vectors.EndpointRerank: b.Query, vectors.EndpointScore: b.Text}
	return firstCharacters(textOf(fields[endpoint]))
}

// promptOnly reports whether the response has no generated token: max_tokens is 0.
func promptOnly(body json.RawMessage) bool {
	var b struct {
		MaxTokens *int64 `json:"max_tokens"`
	}
	_ = strictjson.Unmarshal(body, &b) // the body was checked when the job was accepted
	return b.MaxTokens != nil && *b.MaxTokens == 0
}

// textOf returns the text of a prompt, of the first of several prompts, of content parts, or of the
// newest user message.
func textOf(raw json.RawMessage) string {
	var text string
	if strictjson.Unmarshal(raw, &text) == nil {
		return text
	}
	var list []json.RawMessage
	if strictjson.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return ""
	}
	if strictjson.Unmarshal(list[0], &text) == nil {
		return text
	}
	newest := ""
	for _, item := range list {
		var m struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			Text    string          `json:"text"`
		}
		if strictjson.Unmarshal(item, &m) != nil {
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

// firstCharacters returns the first previewRunes characters of a text, as one line.
func firstCharacters(text string) string {
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

// appendAnswerStart adds a record's tokens to the first tokens of a job's first choice. A token that
// ended the answer has no text.
func appendAnswerStart(ids []int32, r *journal.Record) []int32 {
	if len(ids) >= previewTokens {
		return ids
	}
	_, events, err := DecodeTokens(r.Payload)
	if err != nil { // reading the job will report the damage
		return ids
	}
	for _, e := range events {
		if e.Choice == 0 && e.Event.Token != engine.NoToken && e.Event.Finish != engine.FinishStop && len(ids) < previewTokens {
			ids = append(ids, e.Event.Token)
		}
	}
	return ids
}
