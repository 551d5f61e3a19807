package engine

import (
	"context"
	"encoding/json"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Tokenizer has the methods of a tokenizer that the API needs; safe for concurrent use.
type Tokenizer interface {
	// Encode encodes the joined segments as one text. Added (special) tokens
	// are recognised, but not in literal segments: user text cannot forge a
	// control token. addSpecial applies the post-processor (BOS and the like).
	// It returns an error if the text cannot be encoded in the form that the model expects, or if ctx
	// ends before.
	Encode(ctx context.Context, segments []Segment, addSpecial bool) ([]int32, error)
	Decode(ids []int32, skipSpecial bool) string
	Token(id int32) string      // as the vocabulary spells it
	TokenBytes(id int32) []byte // bytes that it adds to a text
	VocabSize() int
	IsSpecial(id int32) bool
	NewStream(skipSpecial bool) TextStream
}

// TextStream decodes one sequence token by token. Push returns the text that is
// complete after id and holds back the bytes of an unfinished rune; Flush
// returns the rest. Show is Push for a control token that is not skipped. Not safe for concurrent use.
type TextStream interface {
	Push(id int32) string
	Show(id int32) string
	Flush() string
}

// PairTokenizer is a Tokenizer that encodes two texts with the model's template for pairs. limit is the
// maximum number of ids, 0: none. A longer pair is cut at the end of the longer text first.
type PairTokenizer interface {
	EncodePair(ctx context.Context, first, second string, limit int) (ids, types []int32, err error)
}

// FromTokenizer returns a Tokenizer over a checkpoint's own.
func FromTokenizer(t *tokenizer.Tokenizer) Tokenizer { return checkpointTokenizer{t} }

type checkpointTokenizer struct{ *tokenizer.Tokenizer }

func (t checkpointTokenizer) Encode(ctx context.Context, segments []Segment, addSpecial bool) ([]int32, error) {
	parts := make([]tokenizer.Part, len(segments))
	for i, s := range segments {
		parts[i] = tokenizer.Part(s)
	}
	return t.TryEncode(ctx, parts, addSpecial)
}

// EncodePair implements PairTokenizer. Control tokens that the texts spell out stay text.
func (t checkpointTokenizer) EncodePair(ctx context.Context, first, second string, limit int) (ids, types []int32, err error) {
	part := func(s string) []tokenizer.Part { return []tokenizer.Part{{Text: s, Literal: true}} }
	e, err := t.EncodeTexts(ctx, [][]tokenizer.Part{part(first), part(second)}, limit, tokenizer.LongestFirst)
	return e.IDs, e.Types, err
}

func (t checkpointTokenizer) NewStream(skipSpecial bool) TextStream {
	return t.Tokenizer.NewStream(skipSpecial)
}

// ChatTemplate renders a conversation; safe for concurrent use.
type ChatTemplate interface {
	// Render returns the prompt as segments in order. An error names the
	// message the template refuses; it reaches the client as a 400.
	Render(c Conversation) ([]Segment, error)
}

// Conversation is a validated chat request: roles are system, user, assistant or tool.
type Conversation struct {
	Messages            []Message
	Tools               json.RawMessage // a list as in OpenAI's API, or nil
	AddGenerationPrompt bool
	ContinueFinal       bool           // the answer continues the last message
	Kwargs              map[string]any // chat_template_kwargs, JSON values
}

// Think sets the template's variable enable_thinking.
func (c *Conversation) Think(yes bool) {
	if c.Kwargs == nil {
		c.Kwargs = map[string]any{}
	}
	c.Kwargs["enable_thinking"] = yes
}

// Message is one turn of a conversation. Its JSON is part of the disk format of sessions.
type Message struct {
	Role    string          `json:"role"`
	Name    string          `json:"name,omitempty"`
	Content string          `json:"content,omitempty"`
	Empty   bool            `json:"empty,omitempty"`             // no content at all, as in a message that only calls
	Calls   json.RawMessage `json:"tool_calls,omitempty"`        // of an assistant, or nil
	CallID  string          `json:"tool_call_id,omitempty"`      // of a tool's answer
	Thought string          `json:"reasoning_content,omitempty"` // of an assistant
}

// Segment is a piece of a prompt. Literal text came from a message: control
// tokens that it spells out stay text.
type Segment struct {
	Text    string
	Literal bool
}

// FromTemplate returns a ChatTemplate over a checkpoint's own.
func FromTemplate(t *tokenizer.ChatTemplate) ChatTemplate { return checkpointTemplate{t} }

type checkpointTemplate struct{ *tokenizer.ChatTemplate }

// Source and ToolSource return the templates from which the syntax of calls and thoughts is
// detected, for requests without tools and with them.
func (t checkpointTemplate) Source() string { return t.ChatTemplate.Source() }

func (t checkpointTemplate) ToolSource() string { return t.ChatTemplate.ToolSource() }

// Sources are all templates by name, for /tokenizer_info.
func (t checkpointTemplate) Sources() map[string]string { return t.ChatTemplate.Sources() }

func (t checkpointTemplate) Render(c Conversation) ([]Segment, error) {
	prompt, _, err := t.RenderTurn(c)
	return prompt, err
}

// RenderTurn returns the end of the prompt too, in which the answer continues.
func (t checkpointTemplate) RenderTurn(c Conversation) (prompt []Segment, turn string, err error) {
	messages := make([]tokenizer.Message, len(c.Messages))
	for i, m := range c.Messages {
		messages[i] = tokenizer.Message{Role: m.Role, Content: m.Content}
		if m.Empty {
			messages[i].Parts = json.RawMessage("null")
		}
		extra, err := json.Marshal(struct {
			Name    string          `json:"name,omitempty"`
			Calls   json.RawMessage `json:"tool_calls,omitempty"`
			CallID  string          `json:"tool_call_id,omitempty"`
			Thought string          `json:"reasoning_content,omitempty"`
		}{m.Name, m.Calls, m.CallID, m.Thought})
		if err != nil {
			return nil, "", err
		}
		if len(extra) > 2 {
			messages[i].Extra = extra
		}
	}
	parts, turn, err := t.ChatTemplate.RenderTurn(messages, tokenizer.RenderOptions{
		AddGenerationPrompt: c.AddGenerationPrompt, ContinueFinal: c.ContinueFinal, Tools: c.Tools, Extra: c.Kwargs,
	})
	if err != nil {
		return nil, "", err
	}
	out := make([]Segment, len(parts))
	for i, p := range parts {
		out[i] = Segment(p)
	}
	return out, turn, nil
}
