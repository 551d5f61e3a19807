package api

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strings"

	"github.com/shoal-llm/shoal/grammar"
	"github.com/shoal-llm/shoal/toolcall"
)

// toolset are the functions that a chat may call, and must.
type toolset struct {
	list   []tool
	raw    json.RawMessage // as the template sees them
	known  map[string]toolcall.Tool
	forced bool   // at least one call, and nothing else
	only   string // the one that must be called
	single bool   // at most one call
}

// tool is a function that can be called, in the words of OpenAI's chats.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // a schema, or nil
	Strict      bool            `json:"strict,omitempty"`
}

const (
	maxTools    = 512
	maxToolName = 128
)

// parseTools reads tools, tool_choice and parallel_tool_calls; nil: nothing may be called.
func (s *Server) parseTools(f *fields) (*toolset, *apiError) {
	raw, parallel := f.get("tools"), true
	choice := f.get("tool_choice")
	f.boolean("parallel_tool_calls", &parallel)
	if f.err != nil {
		return nil, f.err
	}
	t, e := toolsOf(raw, func(t *toolset, at string, raw json.RawMessage) *apiError {
		var x struct {
			Type     string `json:"type"`
			Function *tool  `json:"function"`
		}
		if json.Unmarshal(raw, &x) != nil || x.Function == nil {
			return invalid(at, "'%s' must be {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", at)
		}
		if x.Type != "function" && x.Type != "" {
			return invalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: only functions can be called.", at, x.Type)
		}
		return t.add(at+".function", *x.Function)
	})
	if e != nil {
		return nil, e
	}
	if t != nil {
		t.raw, t.single = raw, !parallel
	}
	var named struct {
		Type     string `json:"type"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	how := ""
	if choice != nil && json.Unmarshal(choice, &how) != nil {
		if json.Unmarshal(choice, &named) != nil || named.Type != "function" {
			how = "?"
		}
		how += named.Type
	}
	return t.choose(how, named.Function.Name)
}

// toolsOf reads a list of tools; nil: there is none.
func toolsOf(v json.RawMessage, each func(t *toolset, at string, raw json.RawMessage) *apiError) (*toolset, *apiError) {
	if v == nil || emptyValue(v) {
		return nil, nil
	}
	if v[0] != '[' {
		return nil, invalid("tools", "'tools' must be a list.")
	}
	t := &toolset{known: map[string]toolcall.Tool{}}
	return t, elements("tools", "functions", v, maxTools, func(i int, raw json.RawMessage) *apiError { return each(t, "tools["+itoa(i)+"]", raw) })
}

// choose applies a tool_choice: auto, none, required (any), or function with a name.
func (t *toolset) choose(how, name string) (*toolset, *apiError) {
	if t == nil || len(t.list) == 0 {
		if how != "" && how != "none" && how != "auto" {
			return nil, invalid("tool_choice", "'tool_choice' needs 'tools'.")
		}
		return nil, nil
	}
	switch how {
	case "", "auto":
	case "none":
		return nil, nil
	case "required", "any":
		t.forced = true
	case "function":
		if _, ok := t.known[name]; !ok {
			return nil, invalid("tool_choice", "'tool_choice' names %.60q, which is not among 'tools'.", name)
		}
		t.forced, t.single, t.only = true, true, name
	default:
		return nil, invalid("tool_choice", "'tool_choice' must be none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}.")
	}
	return t, nil
}

// add takes a function, whose place in the request is at.
func (t *toolset) add(at string, x tool) *apiError {
	name := x.Name
	if name == "" || len(name) > maxToolName || strings.ContainsFunc(name, func(r rune) bool {
		return !(r == '_' || r == '-' || r == '.' || r == ':' || r == '/' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) {
		return invalid(at+".name", "'%s.name' must be 1 to %d letters, digits, or one of _-.:/.", at, maxToolName)
	}
	if _, twice := t.known[name]; twice {
		return invalid(at+".name", "'tools' name %q twice.", name)
	}
	if isNull(x.Parameters) {
		x.Parameters = nil
	} else if x.Parameters[0] != '{' {
		return invalid(at+".parameters", "'%s.parameters' must be a JSON schema, an object.", at)
	}
	var schema struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	strs := map[string]bool{}
	if x.Parameters != nil && json.Unmarshal(x.Parameters, &schema) == nil {
		for k, p := range schema.Properties {
			strs[k] = p.Type == "string"
		}
	}
	t.known[name] = toolcall.Tool{Strings: strs}
	t.list = append(t.list, x)
	return nil
}

// show writes the tools as templates know them, where they did not come so.
func (t *toolset) show() {
	type shown struct {
		Type     string `json:"type"`
		Function tool   `json:"function"`
	}
	out := make([]shown, len(t.list))
	for i, x := range t.list {
		out[i] = shown{"function", x}
	}
	t.raw = mustJSON(out)
}

// thinking is whether an answer may begin with thoughts, and has begun with them in the
// prompt.
type thinking struct{ on, inside bool }

// constrainTools has the grammar of an answer enforce calls that must be made, and those
// of strict functions; thoughts may come before what a grammar asks for. tail is the end
// of the prompt.
func (s *Server) constrainTools(g *generation, tail string) *apiError {
	g.thinking.on = s.thinks
	g.thinking.inside = s.thinks && strings.HasSuffix(strings.TrimRight(tail, " \n"), "<think>")
	t, spec := g.tools, &g.sampling.Grammar
	switch {
	case t != nil && t.forced:
		if *spec != nil {
			return invalid("tool_choice", "'tool_choice' asks for a call, and another parameter for another structure; give one.")
		}
		made, e := s.callGrammar(t, g.thinking)
		if e != nil {
			return e
		}
		*spec = made
	case t != nil && *spec == nil && s.family == toolcall.Hermes:
		made, e := s.strictTags(t)
		if e != nil {
			return e
		}
		*spec = made
	case *spec != nil && g.thinking.on:
		*spec = afterThought(*spec, g.thinking)
	}
	return nil
}

// thoughtRule is Lark's for a thought that may, or must, come first.
func thoughtRule(th thinking) string {
	switch {
	case th.inside:
		return "%until \"</think>\" /[ \\t\\r\\n]{0,8}/ "
	case th.on:
		return "(\"<think>\" %until \"</think>\" /[ \\t\\r\\n]{0,8}/)? "
	}
	return ""
}

// afterThought lets a thought come before JSON.
func afterThought(spec *grammar.Spec, th thinking) *grammar.Spec {
	out := *spec
	switch spec.Kind {
	case grammar.KindJSONSchema:
		out.Text = "start: " + thoughtRule(th) + "%json " + spec.Text
	case grammar.KindJSONObject:
		out.Text = "start: " + thoughtRule(th) + "%json {\"type\":\"object\"}"
	default:
		return spec
	}
	out.Kind = grammar.KindLark
	return &out
}

// arguments is the schema of a function's arguments; one that cannot be enforced stands
// for any object, unless it is strict.
func (s *Server) arguments(i int, x tool) (string, *apiError) {
	text := `{"type":"object"}`
	if x.Parameters == nil || emptyValue(x.Parameters) {
		return text, nil
	}
	text = string(x.Parameters)
	var head struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(x.Parameters, &head) == nil && head.Type == nil {
		text = `{"type":"object",` + strings.TrimSpace(text)[1:]
	}
	e := s.checkGrammar("tools["+itoa(i)+"].function.parameters", &grammar.Spec{Kind: grammar.KindJSONSchema, Text: text, AnyOrder: true})
	if e != nil && !x.Strict {
		return `{"type":"object"}`, nil
	}
	return text, e
}

// callGrammar is an answer of calls alone, as the model's family writes them where that is
// text, else as JSON.
func (s *Server) callGrammar(t *toolset, th thinking) (*grammar.Spec, *apiError) {
	hermes := s.family == toolcall.Hermes
	var calls []string
	for i, x := range t.list {
		if t.only != "" && x.Name != t.only {
			continue
		}
		schema, e := s.arguments(i, x)
		if e != nil {
			return nil, e
		}
		open, end := `{"name": `+string(mustJSON(x.Name))+`, "parameters": `, "}"
		if hermes {
			open, end = "<tool_call>\n{\"name\": "+string(mustJSON(x.Name))+", \"arguments\": ", "}\n</tool_call>"
		}
		calls = append(calls, string(mustJSON(open))+" %json "+schema+" "+string(mustJSON(end)))
	}
	start := "call"
	switch {
	case t.single:
	case hermes:
		start = `call ("\n" call)*`
	default:
		start = `call | "[" call (", " call)* "]"`
	}
	if rule := thoughtRule(th); rule != "" {
		start = rule + "(" + start + ")"
	}
	spec := &grammar.Spec{Kind: grammar.KindLark, Text: "start: " + start + "\ncall: " + strings.Join(calls, "\n  | "), AnyOrder: true}
	return spec, s.checkGrammar("tools", spec)
}

// strictTags holds calls in free text to their schemas, if any function is strict.
func (s *Server) strictTags(t *toolset) (*grammar.Spec, *apiError) {
	strict := false
	type structure struct {
		Begin  string          `json:"begin"`
		Schema json.RawMessage `json:"schema"`
		End    string          `json:"end"`
	}
	var body struct {
		Triggers   []string    `json:"triggers"`
		Structures []structure `json:"structures"`
	}
	body.Triggers = []string{"<tool_call>"}
	for i, x := range t.list {
		strict = strict || x.Strict
		schema, e := s.arguments(i, x)
		if e != nil {
			return nil, e
		}
		body.Structures = append(body.Structures, structure{"<tool_call>\n{\"name\": " + string(mustJSON(x.Name)) + ", \"arguments\": ", json.RawMessage(schema), "}\n</tool_call>"})
	}
	if !strict {
		return nil, nil
	}
	spec := &grammar.Spec{Kind: grammar.KindTags, Text: string(mustJSON(body)), AnyOrder: true}
	return spec, s.checkGrammar("tools", spec)
}

// mustJSON is for values that always can be written.
func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("api: " + err.Error())
	}
	return b
}

// showTools gives the template the tools, or, where it knows none, tells the model of them
// in words, and of calls and results in turns that it knows.
func (s *Server) showTools(c *Conversation, t *toolset) {
	if s.family == toolcall.Mistral {
		for i := range c.Messages {
			m := &c.Messages[i]
			m.CallID, m.Calls = nineLetters(m.CallID), callsOfNine(m.Calls)
		}
	}
	if s.family != toolcall.None {
		if t != nil {
			c.Tools = t.raw
		}
		return
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		switch {
		case m.Role == "tool":
			*m = Message{Role: "user", Content: "Result of the call: " + m.Content}
		case m.Calls != nil:
			*m = Message{Role: m.Role, Name: m.Name, Content: strings.TrimSpace(m.Content + "\n" + plainCalls(m.Calls))}
		}
	}
	if t == nil {
		return
	}
	text := "You can call these functions:\n" + compactJSON(t.raw) + "\nTo call one, answer with nothing but JSON: {\"name\": NAME, \"parameters\": {...}}. For several, give a list."
	if len(c.Messages) > 0 && c.Messages[0].Role == "system" {
		c.Messages[0].Content += "\n\n" + text
		return
	}
	c.Messages = append([]Message{{Role: "system", Content: text}}, c.Messages...)
}

type sentCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

func sentCalls(raw json.RawMessage) (list []sentCall) {
	_ = json.Unmarshal(raw, &list) // decodeCalls has read it before
	return list
}

// plainCalls writes calls as the model was told to.
func plainCalls(raw json.RawMessage) string {
	var out []string
	for _, c := range sentCalls(raw) {
		out = append(out, `{"name": `+string(mustJSON(c.Function.Name))+`, "parameters": `+schemaText(c.Function.Arguments)+`}`)
	}
	if len(out) == 1 {
		return out[0]
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// callsOfNine gives calls ids of nine letters, as Mistral's templates ask.
func callsOfNine(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	list := sentCalls(raw)
	for i := range list {
		list[i].ID = nineLetters(list[i].ID)
	}
	return mustJSON(list)
}

func nineLetters(id string) string {
	if id == "" || len(id) == 9 {
		return id
	}
	return hashed(id, 9)
}

func hashed(text string, n int) string {
	h := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(h[:]))[:n]
}

// decodeCalls checks the tool_calls of an assistant's message; nil: none.
func decodeCalls(at string, v json.RawMessage, lim Limits) (json.RawMessage, *apiError) {
	if isNull(v) || emptyValue(v) {
		return nil, nil
	}
	if v[0] != '[' {
		return nil, invalid(at, "'%s' must be a list.", at)
	}
	return v, elements(at, "calls", v, lim.Parts, func(i int, raw json.RawMessage) *apiError {
		here := at + "[" + itoa(i) + "]"
		var c sentCall
		if raw[0] != '{' || json.Unmarshal(raw, &c) != nil || c.Function.Name == "" {
			return invalid(here, "'%s' must be {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}.", here)
		}
		return nil
	})
}

// madeCall is a call that the model made, or, without a name, more arguments of one.
type madeCall struct {
	name      string
	arguments []byte
	index     int
	id        string
}

// toolCall is one in OpenAI's words.
type toolCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type callDelta struct {
	Index int `json:"index"`
	toolCall
}

func (c madeCall) toolCall() toolCall {
	out := toolCall{ID: c.id}
	if c.name != "" {
		out.Type = "function"
	}
	out.Function.Name, out.Function.Arguments = c.name, string(c.arguments)
	return out
}

// finishCalls is the finish_reason of an answer that ended by itself after calls.
const finishCalls = "tool_calls"

// parts takes the text of one choice apart. Ids of calls follow from the request's.
type parts struct {
	think  *toolcall.Thinker
	parser *toolcall.Parser
	token  func(id int32) string // the text of a control token that is hidden otherwise
	id     func(n int) string
	calls  int
	single bool
}

func (s *Server) newParts(g *generation, index int) *parts {
	if g.tools == nil && !g.thinking.on {
		return nil
	}
	p := &parts{token: func(int32) string { return "" }}
	if g.thinking.on {
		p.think = toolcall.NewThinker(g.thinking.inside)
	}
	if g.tools == nil {
		return p
	}
	family := s.family
	if family == toolcall.None || g.tools.forced && family != toolcall.Hermes {
		family = toolcall.JSON
	}
	p.parser, p.single = toolcall.New(family, g.tools.known), g.tools.single
	if !g.keepSpecial {
		p.token = func(id int32) string {
			if t := s.tok.Token(id); s.tok.IsSpecial(id) && p.parser.Marks(t) {
				return t
			}
			return ""
		}
	}
	p.id = func(n int) string {
		text := g.sequenceID(index) + "-" + itoa(n)
		if s.family == toolcall.Mistral {
			return hashed(text, 9)
		}
		return "call_" + hashed(text, 24)
	}
	return p
}

// mark is the text of a control token that tells of calls.
func (p *parts) mark(id int32) string {
	if p == nil || p.token == nil {
		return ""
	}
	return p.token(id)
}

// take puts the text of a delta where it belongs.
func (p *parts) take(d *delta) {
	text := d.text
	d.text = ""
	if p.think != nil {
		d.thought, text = p.think.Push(text)
		if d.finish != "" {
			thought, rest := p.think.Flush()
			d.thought, text = d.thought+thought, text+rest
		}
	}
	if p.parser == nil {
		d.text = text
		return
	}
	pieces := p.parser.Push(text)
	if d.finish != "" {
		pieces = append(pieces, p.parser.Flush()...)
	}
	for _, x := range pieces {
		d.text += x.Text
		if x.Call != nil {
			if p.calls++; !p.single || p.calls == 1 {
				d.call(madeCall{x.Call.Name, []byte(x.Call.Arguments), p.calls - 1, p.id(p.calls - 1)})
			}
		}
		if x.Arguments != "" && (!p.single || p.calls == 1) {
			d.call(madeCall{arguments: []byte(x.Arguments), index: p.calls - 1})
		}
	}
	if d.finish == FinishStop && d.reason == nil && p.calls > 0 {
		d.finish = finishCalls
	}
}

func (d *delta) add(o delta) {
	d.tokens = append(d.tokens, o.tokens...)
	for _, c := range o.calls {
		d.call(c)
	}
	d.thought += o.thought
}

// call adds a call, or to the newest one.
func (d *delta) call(c madeCall) {
	if n := len(d.calls); c.name == "" && n > 0 {
		d.calls[n-1].arguments = append(d.calls[n-1].arguments, c.arguments...)
		return
	}
	d.calls = append(d.calls, c)
}
