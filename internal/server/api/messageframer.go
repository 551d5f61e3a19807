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

// messageFramer makes one message: the events of its stream, and the whole of it.
type messageFramer struct {
	begun  bool
	blocks []block
	open   bool // the last of them
	text   []byte
	last   delta
}

func (m *messageFramer) message(r *run, content []block) message {
	return message{ID: r.head.ID, Type: "message", Role: "assistant", Model: r.head.Model, Content: content, Usage: asMessageUsage(r.usage())}
}

func (m *messageFramer) whole(r *run) any {
	out := m.message(r, m.blocks)
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
func (m *messageFramer) begin(out *sse, r *run) {
	if m.begun {
		return
	}
	m.begun = true
	msg := m.message(r, []block{})
	msg.Usage.Output = 0
	out.named("message_start", map[string]any{"type": "message_start", "message": msg})
}

// alive is Anthropic's ping, which like theirs follows the first event.
func (m *messageFramer) alive(out *sse, r *run) {
	m.begin(out, r)
	out.named("ping", map[string]any{"type": "ping"})
}

func (m *messageFramer) delta(out *sse, r *run, d delta) {
	m.begin(out, r)
	if d.thought != "" {
		m.piece(out, block{Type: "thinking", Thinking: new(string), Signature: new(string)}, d.thought, map[string]string{"type": "thinking_delta", "thinking": d.thought})
	}
	text := func(s string) {
		m.piece(out, block{Type: "text", Text: new(string)}, s, map[string]string{"type": "text_delta", "text": s})
	}
	d.inOrder(text, func(c madeCall) {
		b, args := block{Type: "tool_use"}, string(c.arguments)
		if c.name != "" {
			m.close(out)
			input := json.RawMessage("{}")
			b.ID, b.Name, b.Input = c.id, c.name, &input
		}
		m.piece(out, b, args, map[string]string{"type": "input_json_delta", "partial_json": args})
	})
	if d.finish != "" {
		m.last = d
	}
}

// piece adds to the block that is open, or opens one.
func (m *messageFramer) piece(out *sse, b block, text string, d map[string]string) {
	n := len(m.blocks) - 1
	if !m.open || m.blocks[n].Type != b.Type {
		m.close(out)
		m.open, m.blocks, m.text = true, append(m.blocks, b), nil
		n++
		out.named("content_block_start", map[string]any{"type": "content_block_start", "index": n, "content_block": b})
	}
	m.text = append(m.text, text...)
	if text != "" {
		out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": d})
	}
}

// close ends the block that is open.
func (m *messageFramer) close(out *sse) {
	if !m.open {
		return
	}
	m.open = false
	n := len(m.blocks) - 1
	b, text := &m.blocks[n], string(m.text)
	switch b.Type {
	case "thinking":
		b.Thinking = &text
		out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": map[string]string{"type": "signature_delta", "signature": ""}})
	case "text":
		b.Text = &text
	default:
		if input := json.RawMessage(text); json.Valid(input) {
			b.Input = &input
		} else { // cut off: no input is better than a part of one
			*b = block{Type: "text", Text: &text}
		}
	}
	out.named("content_block_stop", map[string]any{"type": "content_block_stop", "index": n})
}

func (m *messageFramer) end(out *sse, r *run) {
	m.close(out)
	reason, sequence := stopReason(m.last)
	out.named("message_delta", map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}, "usage": asMessageUsage(r.usage())})
	out.named("message_stop", map[string]any{"type": "message_stop"})
}

func (m *messageFramer) failed(out *sse, _ *run, e *apiError) {
	out.named("error", messageError(e))
}
