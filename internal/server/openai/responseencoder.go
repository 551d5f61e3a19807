package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// responseEncoder makes one response, as numbered events of a stream or as one body. Both
// follow from the deltas alone, except the time at the end.
type responseEncoder struct {
	s     *API
	r     *generate.Run
	q     *responseRequest
	out   httpserver.SSE
	after int // events up to this number are not written: a client has them
	seq   int
	begun bool
	items []outItem
	open  bool // the last of them
	text  []byte
	probs []chatLogprob
	last  generate.Delta
	final responseObject
}

// event writes an event, unless the client has it already.
func (m *responseEncoder) event(typ string, v map[string]any) {
	v["type"], v["sequence_number"] = typ, m.seq
	m.seq++
	if m.seq-1 <= m.after {
		return
	}
	m.out.Named(typ, v)
}

// begin sends the first events of a response.
func (m *responseEncoder) begin() {
	if m.begun {
		return
	}
	m.begun = true
	now := m.q.echo
	states := []string{"created", "in_progress"}
	if now.Background {
		now.Status = "queued"
		states = []string{"created", "queued", "in_progress"}
	}
	for _, state := range states {
		if state == "in_progress" {
			now.Status = state
		}
		m.event("response."+state, map[string]any{"response": now})
	}
}

// KeepAlive sends a comment: the API has no event for it.
func (m *responseEncoder) KeepAlive() { m.out.Comment("keep-alive") }

func (m *responseEncoder) Delta(d generate.Delta) {
	m.begin()
	if d.Thought != "" {
		m.piece(outItem{Type: "reasoning"}, d.Thought, nil)
	}
	text := func(s string) {
		m.piece(outItem{Type: "message"}, s, m.logprobs(d))
		d.Tokens = nil // they come with the first text of the delta
	}
	if d.Text == "" && len(d.Calls) == 0 && len(d.Tokens) > 0 && m.open && m.items[len(m.items)-1].Type == "message" {
		text("")
	}
	d.InOrder(text, func(c generate.Call) {
		item := outItem{Type: "function_call", Name: c.Name, CallID: c.Id}
		if c.Name == "" {
			item = m.items[len(m.items)-1]
		} else {
			if m.q.free[c.Name] {
				item.Type = "custom_tool_call"
			}
			if x, ok := m.q.spaces[c.Name]; ok {
				item.Name, item.Namespace = x.name, x.namespace
			}
			m.close("completed")
		}
		m.piece(item, string(c.Arguments), nil)
	})
	if d.Finish != "" {
		m.last = d
	}
}

func (m *responseEncoder) logprobs(d generate.Delta) []chatLogprob {
	if !m.q.logprobs || len(d.Tokens) == 0 {
		return nil
	}
	return m.s.chatLogprobs(m.r.Request, d.Tokens).Content
}

// id returns the id of an item, which is derived from the id of the response.
func (m *responseEncoder) id(typ string, n int) string {
	prefix := map[string]string{"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}[typ]
	return prefix + m.r.Head.ID[len("resp_"):] + "_" + strconv.Itoa(n)
}

func (m *responseEncoder) part(typ, text string, probs []chatLogprob) itemPart {
	if typ == "reasoning" {
		return itemPart{Type: "reasoning_text", Text: text}
	}
	if probs == nil {
		probs = []chatLogprob{}
	}
	return itemPart{Type: "output_text", Text: text, Annotations: &[]any{}, Logprobs: probs}
}

// piece adds to the item that is open, or opens one.
func (m *responseEncoder) piece(x outItem, text string, probs []chatLogprob) {
	n := len(m.items) - 1
	if !m.open || m.items[n].Type != x.Type {
		m.close("completed")
		n++
		x.ID, x.Status = m.id(x.Type, n), "in_progress"
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
		m.event("response.output_item.added", map[string]any{"output_index": n, "item": x})
		if x.Type == "message" || x.Type == "reasoning" {
			m.event("response.content_part.added",
				map[string]any{"output_index": n, "item_id": x.ID, "content_index": 0, "part": m.part(x.Type, "", nil)})
		}
	}
	m.text, m.probs = append(m.text, text...), append(m.probs, probs...)
	v := map[string]any{"output_index": n, "item_id": m.items[n].ID, "delta": text}
	switch {
	case text == "" && len(probs) == 0, x.Type == "custom_tool_call": // whose input is known when it is whole
	case x.Type == "function_call":
		m.event("response.function_call_arguments.delta", v)
	case x.Type == "reasoning":
		v["content_index"] = 0
		m.event("response.reasoning_text.delta", v)
	default:
		v["content_index"], v["logprobs"] = 0, m.part("", "", probs).Logprobs
		m.event("response.output_text.delta", v)
	}
}

// close ends the item that is open.
func (m *responseEncoder) close(status string) {
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
		m.event("response.custom_tool_call_input.delta", map[string]any{"output_index": n, "item_id": x.ID, "delta": args.Input})
		v["input"] = args.Input
	default:
		p := m.part(x.Type, text, m.probs)
		x.Content, part, kind = &[]itemPart{p}, &p, p.Type
		v["content_index"], v["text"] = 0, text
		if x.Type == "message" {
			v["logprobs"] = part.Logprobs
		} else if m.q.encrypted {
			x.Encrypted = sealedThought + base64.StdEncoding.EncodeToString(m.text)
		}
	}
	m.event("response."+kind+".done", v)
	if part != nil {
		m.event("response.content_part.done", map[string]any{"output_index": n, "item_id": x.ID, "content_index": 0, "part": part})
	}
	m.event("response.output_item.done", map[string]any{"output_index": n, "item": *x})
}

// finish closes the open item and returns how the response ended.
func (m *responseEncoder) finish() (status string) {
	status = "completed"
	if m.last.Finish == engine.FinishLength {
		status = "incomplete"
	}
	if m.begin(); len(m.items) == 0 {
		m.piece(outItem{Type: "message"}, "", nil)
	}
	last := m.items[len(m.items)-1].Type
	if call := last == "function_call" || last == "custom_tool_call"; m.open && call && !json.Valid(m.text) {
		m.close("incomplete") // a stop string cut the arguments off
	}
	m.close(status)
	return status
}

func (m *responseEncoder) End() {
	status := m.finish()
	m.final = m.q.echo
	m.final.Status, m.final.Output, m.final.CompletedAt = status, m.items, unixNow()
	if status == "incomplete" {
		m.final.Incomplete = &incomplete{"max_output_tokens"}
	}
	m.final.Usage = asResponseUsage(m.r)
	if m.final.Store && !m.final.Background && m.out.Failure() == nil {
		m.final.Store = m.s.keep(m.q, m.r.Sampling.Seed, m.final)
	}
	m.event("response."+status, map[string]any{"response": m.final})
}

// EndAs writes the last event of a response that is kept.
func (m *responseEncoder) EndAs(k generate.StoredResponse) {
	if k.Result != nil {
		if len(m.items) == 0 {
			m.again(k.Result)
		}
		m.event("response."+m.finish(), map[string]any{"response": k.Result})
		return
	}
	m.close("incomplete")
	v := m.q.echo
	v.Status, v.Output = k.Status, append(v.Output, m.items...)
	if k.Status == "failed" {
		v.Error = &responseError{k.Code, k.Message}
	}
	m.event("response."+k.Status, map[string]any{"response": v})
}

// again writes the events of the items of a response whose tokens are not stored: it was not made in the background.
func (m *responseEncoder) again(result json.RawMessage) {
	var r struct {
		Status string    `json:"status"`
		Output []outItem `json:"output"`
	}
	_ = json.Unmarshal(result, &r) // it was stored by this encoder
	for _, x := range r.Output {
		text, probs := "", []chatLogprob(nil)
		switch {
		case x.Arguments != nil:
			text = *x.Arguments
		case x.Input != nil:
			text = string(jsonbody.MustJSON(map[string]string{"input": *x.Input}))
		case x.Content != nil:
			for _, p := range *x.Content {
				text += p.Text
				raw, _ := json.Marshal(p.Logprobs)
				_ = json.Unmarshal(raw, &probs) // of another form: none
			}
		}
		m.close("completed")
		m.piece(outItem{Type: x.Type, Name: x.Name, CallID: x.CallID, Namespace: x.Namespace}, text, probs)
		m.close(x.Status)
	}
	if r.Status == "incomplete" {
		m.last.Finish = engine.FinishLength
	}
}

func asResponseUsage(r *generate.Run) *responseUsage {
	u := r.Usage()
	out := &responseUsage{Input: u.PromptTokens, Output: u.CompletionTokens, Total: u.TotalTokens}
	if u.Details != nil {
		out.InputDetails.Cached = u.Details.Cached
	}
	for _, c := range r.Choices {
		out.OutputDetails.Reasoning += c.Thoughts
	}
	return out
}

func (m *responseEncoder) Body() any { return m.final }

func (m *responseEncoder) Fail(e *apierr.Error) {
	m.begin()
	m.close("incomplete")
	v := m.q.echo
	v.Status, v.Output, v.Error, v.Store = "failed", append(v.Output, m.items...),
		&responseError{cmp.Or(e.Code, apierr.TypeServer), e.Message}, false
	m.event("response.failed", map[string]any{"response": v})
}

func unixNow() *int64 {
	t := time.Now().Unix()
	return &t
}
