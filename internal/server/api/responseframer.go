package api

import (
	"encoding/base64"
	"encoding/json"
)

// responseFramer makes one response: the events of its stream, numbered, and the whole.
// Both follow from the deltas alone, but for the time at the end.
type responseFramer struct {
	after int // events up to this number are not written: a client has them
	seq   int
	begun bool
	items []outItem
	open  bool // the last of them
	text  []byte
	probs []chatLogprob
	last  delta
	final responseObject
}

// event writes one, if the client has not had it.
func (m *responseFramer) event(out *sse, typ string, v map[string]any) {
	v["type"], v["sequence_number"] = typ, m.seq
	m.seq++
	if m.seq-1 <= m.after {
		return
	}
	out.named(typ, v)
}

// begin says that the response is there.
func (m *responseFramer) begin(out *sse, r *run) {
	if m.begun {
		return
	}
	m.begun = true
	now := r.response.echo
	states := []string{"created", "in_progress"}
	if now.Background {
		now.Status = "queued"
		states = []string{"created", "queued", "in_progress"}
	}
	for _, state := range states {
		if state == "in_progress" {
			now.Status = state
		}
		m.event(out, "response."+state, map[string]any{"response": now})
	}
}

// alive is a comment: the API has no event for it.
func (m *responseFramer) alive(out *sse, _ *run) { out.comment("keep-alive") }

func (m *responseFramer) delta(out *sse, r *run, d delta) {
	m.begin(out, r)
	if d.thought != "" {
		m.piece(out, r, outItem{Type: "reasoning"}, d.thought, nil)
	}
	text := func(s string) {
		m.piece(out, r, outItem{Type: "message"}, s, m.logprobs(r, d))
		d.tokens = nil // they come with the first text of the delta
	}
	if d.text == "" && len(d.calls) == 0 && len(d.tokens) > 0 && m.open && m.items[len(m.items)-1].Type == "message" {
		text("")
	}
	d.inOrder(text, func(c madeCall) {
		item := outItem{Type: "function_call", Name: c.name, CallID: c.id}
		if c.name == "" {
			item = m.items[len(m.items)-1]
		} else {
			if r.response.free[c.name] {
				item.Type = "custom_tool_call"
			}
			if x, ok := r.response.spaces[c.name]; ok {
				item.Name, item.Namespace = x.name, x.namespace
			}
			m.close(out, r, "completed")
		}
		m.piece(out, r, item, string(c.arguments), nil)
	})
	if d.finish != "" {
		m.last = d
	}
}

func (m *responseFramer) logprobs(r *run, d delta) []chatLogprob {
	if !r.response.logprobs || len(d.tokens) == 0 {
		return nil
	}
	return r.server.chatLogprobs(r.generation, d.tokens).Content
}

// ids of items follow from the response's.
func (m *responseFramer) id(r *run, typ string, n int) string {
	prefix := map[string]string{"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}[typ]
	return prefix + r.head.ID[len("resp_"):] + "_" + itoa(n)
}

func (m *responseFramer) part(typ, text string, probs []chatLogprob) itemPart {
	if typ == "reasoning" {
		return itemPart{Type: "reasoning_text", Text: text}
	}
	if probs == nil {
		probs = []chatLogprob{}
	}
	return itemPart{Type: "output_text", Text: text, Annotations: &[]any{}, Logprobs: probs}
}

// piece adds to the item that is open, or opens one.
func (m *responseFramer) piece(out *sse, r *run, x outItem, text string, probs []chatLogprob) {
	n := len(m.items) - 1
	if !m.open || m.items[n].Type != x.Type {
		m.close(out, r, "completed")
		n++
		x.ID, x.Status = m.id(r, x.Type, n), "in_progress"
		switch x.Type {
		case "message":
			x.Role, x.Content = "assistant", &[]itemPart{}
		case "reasoning":
			x.Summary = &[]itemPart{}
		case "function_call":
			x.Arguments = new(string)
		default:
			x.Input = new(string)
		}
		m.open, m.items, m.text, m.probs = true, append(m.items, x), nil, nil
		m.event(out, "response.output_item.added", map[string]any{"output_index": n, "item": x})
		if x.Type == "message" || x.Type == "reasoning" {
			m.event(out, "response.content_part.added", map[string]any{"output_index": n, "item_id": x.ID, "content_index": 0, "part": m.part(x.Type, "", nil)})
		}
	}
	m.text, m.probs = append(m.text, text...), append(m.probs, probs...)
	v := map[string]any{"output_index": n, "item_id": m.items[n].ID, "delta": text}
	switch {
	case text == "" && len(probs) == 0, x.Type == "custom_tool_call": // whose input is known when it is whole
	case x.Type == "function_call":
		m.event(out, "response.function_call_arguments.delta", v)
	case x.Type == "reasoning":
		v["content_index"] = 0
		m.event(out, "response.reasoning_text.delta", v)
	default:
		v["content_index"], v["logprobs"] = 0, m.part("", "", probs).Logprobs
		m.event(out, "response.output_text.delta", v)
	}
}

// close ends the item that is open.
func (m *responseFramer) close(out *sse, r *run, status string) {
	if !m.open {
		return
	}
	m.open = false
	n := len(m.items) - 1
	x, text := &m.items[n], string(m.text)
	x.Status = status
	v := map[string]any{"output_index": n, "item_id": x.ID}
	var kind string
	var part *itemPart
	switch x.Type {
	case "function_call":
		x.Arguments, kind = &text, "function_call_arguments"
		v["arguments"], v["name"] = text, x.Name
	case "custom_tool_call":
		var args struct {
			Input string `json:"input"`
		}
		if json.Unmarshal(m.text, &args) != nil {
			args.Input = text // cut off
		}
		x.Input, kind = &args.Input, "custom_tool_call_input"
		m.event(out, "response.custom_tool_call_input.delta", map[string]any{"output_index": n, "item_id": x.ID, "delta": args.Input})
		v["input"] = args.Input
	default:
		p := m.part(x.Type, text, m.probs)
		x.Content, part, kind = &[]itemPart{p}, &p, p.Type
		v["content_index"], v["text"] = 0, text
		if x.Type == "message" {
			v["logprobs"] = part.Logprobs
		} else if r.response.encrypted {
			x.Encrypted = sealedThought + base64.StdEncoding.EncodeToString(m.text)
		}
	}
	m.event(out, "response."+kind+".done", v)
	if part != nil {
		m.event(out, "response.content_part.done", map[string]any{"output_index": n, "item_id": x.ID, "content_index": 0, "part": part})
	}
	m.event(out, "response.output_item.done", map[string]any{"output_index": n, "item": *x})
}

// finish closes what is open, and tells how the response ended.
func (m *responseFramer) finish(out *sse, r *run) (status string) {
	status = "completed"
	if m.last.finish == FinishLength {
		status = "incomplete"
	}
	if m.begin(out, r); len(m.items) == 0 {
		m.piece(out, r, outItem{Type: "message"}, "", nil)
	}
	m.close(out, r, status)
	return status
}

func (m *responseFramer) end(out *sse, r *run) {
	status := m.finish(out, r)
	m.final = r.response.echo
	m.final.Status, m.final.Output, m.final.CompletedAt = status, m.items, unixNow()
	if status == "incomplete" {
		m.final.Incomplete = &incomplete{"max_output_tokens"}
	}
	m.final.Usage = asResponseUsage(r)
	if m.final.Store && !m.final.Background && out.failure() == nil {
		m.final.Store = r.server.keep(r, m.final)
	}
	m.event(out, "response."+status, map[string]any{"response": m.final})
}

func asResponseUsage(r *run) *responseUsage {
	u := r.usage()
	out := &responseUsage{Input: u.PromptTokens, Output: u.CompletionTokens, Total: u.TotalTokens}
	if u.Details != nil {
		out.InputDetails.Cached = u.Details.Cached
	}
	for _, c := range r.choices {
		out.OutputDetails.Reasoning += c.thoughts
	}
	return out
}

func (m *responseFramer) whole(*run) any { return m.final }

func (m *responseFramer) failed(out *sse, r *run, e *apiError) {
	m.begin(out, r)
	v := r.response.echo
	v.Status, v.Output, v.Error, v.Store = "failed", append(v.Output, m.items...), &responseError{orDefault(e.code, typeServer), e.message}, false
	m.event(out, "response.failed", map[string]any{"response": v})
}
