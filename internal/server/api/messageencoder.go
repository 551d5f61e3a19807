package api

import (
	"encoding/json"
	"net/http"
)

// messageError is an error in Anthropic's words.
func messageError(e *apiError) any {
	typ := map[int]string{http.StatusUnauthorized: typeAuth, http.StatusForbidden: typePermission, http.StatusNotFound: "not_found_error",
		http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: typeRateLimit, http.StatusServiceUnavailable: "overloaded_error"}[e.status]
	switch {
	case typ != "":
	case e.status >= 500:
		typ = "api_error"
	default:
		typ = typeInvalid
	}
	return map[string]any{"type": "error", "error": map[string]string{"type": typ, "message": e.message}}
}

type block struct {
	Type      string           `json:"type"`
	Text      *string          `json:"text,omitempty"`
	Thinking  *string          `json:"thinking,omitempty"`
	Signature *string          `json:"signature,omitempty"`
	ID        string           `json:"id,omitempty"`
	Name      string           `json:"name,omitempty"`
	Input     *json.RawMessage `json:"input,omitempty"`
}

type messageUsage struct {
	Input    int `json:"input_tokens"`
	Creation int `json:"cache_creation_input_tokens"`
	Read     int `json:"cache_read_input_tokens"`
	Output   int `json:"output_tokens"`
}

func asMessageUsage(u usage) messageUsage {
	out := messageUsage{Input: u.PromptTokens, Output: u.CompletionTokens}
	if u.Details != nil {
		out.Read = u.Details.Cached
		out.Input -= out.Read
	}
	return out
}

type message struct {
	ID           string       `json:"id"`
	Type         string       `json:"type"`
	Role         string       `json:"role"`
	Model        string       `json:"model"`
	Content      []block      `json:"content"`
	StopReason   *string      `json:"stop_reason"`
	StopSequence *string      `json:"stop_sequence"`
	Usage        messageUsage `json:"usage"`
}

// messageEncoder makes one message, as the events of a stream or as one body.
type messageEncoder struct {
	r      *run
	out    sse
	begun  bool
	blocks []block
	open   bool // the last of them
	text   []byte
	last   delta
}

func (m *messageEncoder) message(content []block) message {
	return message{ID: m.r.head.ID, Type: "message", Role: "assistant", Model: m.r.head.Model, Content: content, Usage: asMessageUsage(m.r.usage())}
}

func (m *messageEncoder) body() any {
	out := m.message(m.blocks)
	if len(m.blocks) == 0 {
		out.Content = []block{{Type: "text", Text: new(string)}}
	}
	out.StopReason, out.StopSequence = stopReason(m.last)
	return out
}

func stopReason(d delta) (reason, sequence *string) {
	why := "end_turn"
	switch d.finish {
	case FinishLength:
		why = "max_tokens"
	case finishCalls:
		why = "tool_use"
	default:
		if s, ok := d.reason.(string); ok {
			why, sequence = "stop_sequence", &s
		}
	}
	return &why, sequence
}

// begin sends the first event.
func (m *messageEncoder) begin() {
	if m.begun {
		return
	}
	m.begun = true
	msg := m.message([]block{})
	msg.Usage.Output = 0
	m.out.named("message_start", map[string]any{"type": "message_start", "message": msg})
}

// keepAlive sends Anthropic's ping, which like theirs follows the first event.
func (m *messageEncoder) keepAlive() {
	m.begin()
	m.out.named("ping", map[string]any{"type": "ping"})
}

func (m *messageEncoder) delta(d delta) {
	m.begin()
	if d.thought != "" {
		m.piece(block{Type: "thinking", Thinking: new(string), Signature: new(string)}, d.thought, map[string]string{"type": "thinking_delta", "thinking": d.thought})
	}
	text := func(s string) {
		m.piece(block{Type: "text", Text: new(string)}, s, map[string]string{"type": "text_delta", "text": s})
	}
	d.inOrder(text, func(c madeCall) {
		b, args := block{Type: "tool_use"}, string(c.arguments)
		if c.name != "" {
			m.close()
			input := json.RawMessage("{}")
			b.ID, b.Name, b.Input = c.id, c.name, &input
		}
		m.piece(b, args, map[string]string{"type": "input_json_delta", "partial_json": args})
	})
	if d.finish != "" {
		m.last = d
	}
}

// piece adds to the block that is open, or opens one.
func (m *messageEncoder) piece(b block, text string, d map[string]string) {
	n := len(m.blocks) - 1
	if !m.open || m.blocks[n].Type != b.Type {
		m.close()
		m.open, m.blocks, m.text = true, append(m.blocks, b), nil
		n++
		m.out.named("content_block_start", map[string]any{"type": "content_block_start", "index": n, "content_block": b})
	}
	m.text = append(m.text, text...)
	if text != "" {
		m.out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": d})
	}
}

// close ends the block that is open.
func (m *messageEncoder) close() {
	if !m.open {
		return
	}
	m.open = false
	n := len(m.blocks) - 1
	b, text := &m.blocks[n], string(m.text)
	switch b.Type {
	case "thinking":
		b.Thinking = &text
		m.out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": map[string]string{"type": "signature_delta", "signature": ""}})
	case "text":
		b.Text = &text
	default:
		if input := json.RawMessage(text); json.Valid(input) {
			b.Input = &input
		} else { // cut off: no input is better than a part of one
			*b = block{Type: "text", Text: &text}
		}
	}
	m.out.named("content_block_stop", map[string]any{"type": "content_block_stop", "index": n})
}

func (m *messageEncoder) end() {
	m.close()
	reason, sequence := stopReason(m.last)
	m.out.named("message_delta", map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}, "usage": asMessageUsage(m.r.usage())})
	m.out.named("message_stop", map[string]any{"type": "message_stop"})
}

func (m *messageEncoder) fail(e *apiError) {
	m.out.named("error", messageError(e))
}
