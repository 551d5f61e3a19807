package anthropic

import (
	"encoding/json"
	"net/http"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// Error returns an error in Anthropic's form.
func Error(e *apierr.Error) any {
	typ := map[int]string{http.StatusUnauthorized: apierr.TypeAuth, http.StatusForbidden: apierr.TypePermission,
		http.StatusNotFound:              "not_found_error",
		http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: apierr.TypeRateLimit,
		http.StatusServiceUnavailable: "overloaded_error"}[e.Status]
	switch {
	case typ != "":
	case e.Status >= 500:
		typ = "api_error"
	default:
		typ = apierr.TypeInvalid
	}
	return map[string]any{"type": "error", "error": map[string]string{"type": typ, "message": e.Message}}
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

func asMessageUsage(u generate.Usage) messageUsage {
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

// encoder makes one message, as the events of a stream or as one body.
type encoder struct {
	r      *generate.Run
	out    httpserver.SSE
	begun  bool
	blocks []block
	open   bool // the last of them
	text   []byte
	last   generate.Delta
}

func (m *encoder) message(content []block) message {
	return message{ID: m.r.Head.ID, Type: "message", Role: "assistant", Model: m.r.Head.Model,
		Content: content, Usage: asMessageUsage(m.r.Usage())}
}

func (m *encoder) Body() any {
	out := m.message(m.blocks)
	if len(m.blocks) == 0 {
		out.Content = []block{{Type: "text", Text: new(string)}}
	}
	out.StopReason, out.StopSequence = stopReason(m.last)
	return out
}

func stopReason(d generate.Delta) (reason, sequence *string) {
	why := "end_turn"
	switch d.Finish {
	case engine.FinishLength:
		why = "max_tokens"
	case generate.FinishCalls:
		why = "tool_use"
	default:
		if s, ok := d.Reason.(string); ok {
			why, sequence = "stop_sequence", &s
		}
	}
	return &why, sequence
}

// begin sends the first event.
func (m *encoder) begin() {
	if m.begun {
		return
	}
	m.begun = true
	msg := m.message([]block{})
	msg.Usage.Output = 0
	m.out.Named("message_start", map[string]any{"type": "message_start", "message": msg})
}

// KeepAlive sends a ping event, and the first event before it if that was not sent yet.
func (m *encoder) KeepAlive() {
	m.begin()
	m.out.Named("ping", map[string]any{"type": "ping"})
}

func (m *encoder) Delta(d generate.Delta) {
	m.begin()
	if d.Thought != "" {
		m.piece(block{Type: "thinking", Thinking: new(string), Signature: new(string)}, d.Thought,
			map[string]string{"type": "thinking_delta", "thinking": d.Thought})
	}
	text := func(s string) {
		m.piece(block{Type: "text", Text: new(string)}, s, map[string]string{"type": "text_delta", "text": s})
	}
	d.InOrder(text, func(c generate.Call) {
		b, args := block{Type: "tool_use"}, string(c.Arguments)
		if c.Name != "" {
			m.close()
			input := json.RawMessage("{}")
			b.ID, b.Name, b.Input = c.Id, c.Name, &input
		}
		m.piece(b, args, map[string]string{"type": "input_json_delta", "partial_json": args})
	})
	if d.Finish != "" {
		m.last = d
	}
}

// piece adds to the block that is open, or opens one.
func (m *encoder) piece(b block, text string, d map[string]string) {
	n := len(m.blocks) - 1
	if !m.open || m.blocks[n].Type != b.Type {
		m.close()
		m.open, m.blocks, m.text = true, append(m.blocks, b), nil
		n++
		m.out.Named("content_block_start", map[string]any{"type": "content_block_start", "index": n, "content_block": b})
	}
	m.text = append(m.text, text...)
	if text != "" {
		m.out.Named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": d})
	}
}

// close ends the block that is open.
func (m *encoder) close() {
	if !m.open {
		return
	}
	m.open = false
	n := len(m.blocks) - 1
	b, text := &m.blocks[n], string(m.text)
	switch b.Type {
	case "thinking":
		b.Thinking = &text
		m.out.Named("content_block_delta",
			map[string]any{"type": "content_block_delta", "index": n, "delta": map[string]string{"type": "signature_delta", "signature": ""}})
	case "text":
		b.Text = &text
	default:
		if input := json.RawMessage(text); json.Valid(input) {
			b.Input = &input
		} else { // cut off: no input is better than a part of one
			*b = block{Type: "text", Text: &text}
		}
	}
	m.out.Named("content_block_stop", map[string]any{"type": "content_block_stop", "index": n})
}

func (m *encoder) End() {
	m.close()
	reason, sequence := stopReason(m.last)
	m.out.Named("message_delta", map[string]any{"type": "message_delta",
		"delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}, "usage": asMessageUsage(m.r.Usage())})
	m.out.Named("message_stop", map[string]any{"type": "message_stop"})
}

func (m *encoder) Fail(e *apierr.Error) {
	m.out.Named("error", Error(e))
}
