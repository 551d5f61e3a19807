package api

import (
	"cmp"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// The description of the API is made from the table of routes, the limits in force, the
// structs that answers are written from, and the tables of members below, which a test
// holds against what the decoders read and refuse.

func (s *admin) handleOpenAPI(w http.ResponseWriter, _ *http.Request) {
	s.http.writeJSON(w, http.StatusOK, s.describe())
}

type object = map[string]any

// member is one of a request's.
type member struct {
	name   string
	schema object
}

func text(most int) object              { return object{"type": "string", "maxLength": most} }
func oneOfWords(words ...string) object { return object{"type": "string", "enum": words} }
func number(lo, hi float64) object      { return object{"type": "number", "minimum": lo, "maximum": hi} }
func whole(lo, hi int64) object         { return object{"type": "integer", "minimum": lo, "maximum": hi} }
func list(most int, of object) object   { return object{"type": "array", "maxItems": most, "items": of} }
func either(of ...object) object        { return object{"anyOf": of} }

var (
	yesNo   = object{"type": "boolean"}
	free    = object{"type": "object"}
	anyText = object{"type": "string"}
)

// shared are the members of both of OpenAI's completions.
func (s *Service) shared() []member {
	l := &s.cfg.Limits
	ids := list(l.StopTokens, whole(0, int64(s.vocab-1)))
	return []member{
		{"model", text(512)}, {"stream", yesNo}, {"stream_options", object{"type": "object", "properties": object{"include_usage": yesNo, "continuous_usage_stats": yesNo}}},
		{"n", whole(1, int64(l.N))}, {"best_of", object{"type": "integer", "minimum": 1, "maximum": l.N, "description": "n to " + itoa(l.N) + "; chats: equal to n"}},
		{"max_tokens", whole(-1, 1<<31-1)}, {"max_completion_tokens", whole(-1, 1<<31-1)}, {"min_tokens", whole(0, 1<<31-1)},
		{"temperature", number(0, 2)}, {"top_p", number(0, 1)}, {"top_k", whole(-1, 1<<31-1)}, {"min_p", number(0, 1)},
		{"presence_penalty", number(-2, 2)}, {"frequency_penalty", number(-2, 2)}, {"repetition_penalty", object{"type": "number", "exclusiveMinimum": 0, "maximum": 10}},
		{"logit_bias", object{"type": "object", "additionalProperties": number(-100, 100), "maxProperties": l.LogitBias}},
		{"allowed_token_ids", object{"type": "array", "minItems": 1, "maxItems": s.vocab, "items": whole(0, int64(s.vocab-1))}}, {"bad_words", list(l.BadWords, text(l.StopBytes))},
		{"seed", object{"type": "integer", "format": "int64"}}, {"stop", either(text(l.StopBytes), list(l.Stops, text(l.StopBytes)))}, {"stop_token_ids", ids}, {"include_stop_str_in_output", yesNo},
		{"ignore_eos", yesNo}, {"skip_special_tokens", yesNo}, {"add_special_tokens", yesNo}, {"return_tokens_as_token_ids", yesNo},
		{"truncate_prompt_tokens", whole(-1, 1<<31-1)},
		{"kv_policy", text(l.PolicyBytes)}, {"cache", yesNo}, {"cache_salt", text(512)}, {"context", text(64)}, {"speculate", oneOfWords("", "off", "lookup", "suffix")},
		{"priority", object{"type": "integer", "format": "int32"}}, {"user", text(1024)}, {"metadata", object{}},
		{"response_format", free}, {"structured_outputs", free}, {"guided_json", either(free, anyText, yesNo)}, {"guided_regex", text(l.GrammarBytes)}, {"guided_choice", list(1<<16, anyText)},
		{"guided_grammar", text(l.GrammarBytes)}, {"guided_whitespace_pattern", text(l.GrammarBytes)}, {"guided_decoding_backend", text(256)}, {"grammar", text(l.GrammarBytes)}, {"json_schema", either(free, anyText)},
	}
}

func (s *Service) chatMembers() []member {
	l := &s.cfg.Limits
	return append(s.shared(), member{"messages", list(l.Messages, free)}, member{"tools", list(maxTools, free)}, member{"tool_choice", either(oneOfWords("none", "auto", "required", "any"), free)},
		member{"parallel_tool_calls", yesNo}, member{"logprobs", yesNo}, member{"top_logprobs", whole(0, int64(l.TopLogprobs))}, member{"add_generation_prompt", yesNo},
		member{"continue_final_message", yesNo}, member{"chat_template_kwargs", free}, member{"enable_thinking", yesNo},
		member{"reasoning_effort", text(64)}, member{"reasoning", free})
}

func (s *openAI) completionMembers() []member {
	l := &s.cfg.Limits
	ids := object{"type": "array", "items": whole(0, int64(s.vocab-1))} // truncate_prompt_tokens takes any number
	return append(s.shared(), member{"prompt", either(anyText, list(l.Prompts, anyText), ids, list(l.Prompts, ids))}, member{"echo", yesNo}, member{"logprobs", either(whole(0, int64(l.Logprobs)), yesNo)})
}

// of are those of the shared members that another protocol has, under its names.
func of(shared []member, words map[string]string) (out []member) {
	for from, to := range words {
		for _, m := range shared {
			if m.name == to {
				out = append(out, member{from, m.schema})
			}
		}
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	return out
}

func (s *anthropicAPI) messagesMembers() []member {
	l := &s.cfg.Limits
	words := of(s.shared(), messagesWords)
	for i := range words {
		if words[i].name == "stop_sequences" {
			words[i].schema = list(manyStops, text(l.StopBytes))
		}
	}
	return append(words, member{"max_tokens", whole(-1, 1<<31-1)}, member{"messages", list(l.Messages, free)}, member{"system", either(anyText, list(l.Parts, free))}, member{"tools", list(maxTools, free)},
		member{"tool_choice", free}, member{"thinking", free}, member{"output_config", free}, member{"metadata", object{}}, member{"service_tier", object{}})
}

func (s *openAI) responsesMembers() []member {
	l := &s.cfg.Limits
	return append(of(s.shared(), responsesWords), member{"input", either(anyText, list(l.Messages, free))}, member{"instructions", anyText}, member{"previous_response_id", text(128)}, member{"store", yesNo}, member{"background", yesNo},
		member{"tools", list(maxTools, free)}, member{"tool_choice", either(oneOfWords("none", "auto", "required", "any"), free)}, member{"parallel_tool_calls", yesNo}, member{"max_tool_calls", whole(0, 1<<31-1)},
		member{"text", object{"type": "object", "properties": object{"format": free, "verbosity": text(32)}}}, member{"reasoning", free}, member{"include", list(1<<16, anyText)}, member{"top_logprobs", whole(0, int64(l.TopLogprobs))},
		member{"max_output_tokens", whole(-1, 1<<31-1)}, member{"metadata", free}, member{"prompt_cache_key", text(512)}, member{"safety_identifier", text(512)},
		member{"service_tier", object{}}, member{"stream_options", object{}}, member{"client_metadata", object{}}, member{"truncation", oneOfWords("auto", "disabled")})
}

// ollamaMembers are those of both of Ollama's routes, and more.
func ollamaMembers(more ...member) []member {
	return append(more, member{"model", text(512)}, member{"stream", yesNo}, member{"think", object{}}, member{"format", either(free, anyText)}, member{"options", free}, member{"raw", yesNo},
		member{"keep_alive", object{}}, member{"context", object{}}, member{"truncate", object{}}, member{"shift", object{}})
}

// operation is what a route takes and gives.
type operation struct {
	about    string
	members  []member
	required []string
	answer   any // a value of the type that is written; nil: any JSON
	events   any // of a stream
}

func operations(s *openAI, a *anthropicAPI) map[string]operation {
	return map[string]operation{
		"POST /v1/chat/completions": {about: "a chat, in the model's own template", members: s.chatMembers(), required: []string{"messages"}, answer: chatCompletion{}, events: chunkBody{}},
		"POST /v1/completions":      {about: "text or token ids", members: s.completionMembers(), required: []string{"prompt"}, answer: completionBody{}, events: chunkBody{}},
		"POST /v1/messages":         {about: "Anthropic's Messages", members: a.messagesMembers(), required: []string{"messages", "max_tokens"}, answer: message{}, events: object{}},
		"POST /v1/messages/count_tokens": {about: "tokens of a message's prompt", members: pick(a.messagesMembers(), "model", "messages", "system", "tools", "tool_choice", "thinking"), required: []string{"messages"}, answer: struct {
			Tokens int `json:"input_tokens"`
		}{}},
		"POST /v1/responses": {about: "OpenAI's Responses", members: s.responsesMembers(), answer: responseObject{}, events: object{}},
		"POST /v1/responses/input_tokens": {about: "tokens of a response's prompt", members: s.responsesMembers(), answer: struct {
			Object string `json:"object"`
			Tokens int    `json:"input_tokens"`
		}{}},
		"POST /tokenize": {about: "token ids of a text or a chat", members: append([]member{{"model", text(512)}, {"prompt", anyText}, {"content", anyText}, {"add_special_tokens", yesNo}, {"add_special", yesNo}, {"return_token_strs", yesNo}},
			pick(s.chatMembers(), "messages", "tools", "tool_choice", "parallel_tool_calls", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "reasoning")...), answer: tokenized{}},
		"POST /detokenize": {about: "text of token ids", members: []member{{"model", text(512)}, {"tokens", list(s.cfg.Limits.DetokenizeToken, whole(0, int64(s.vocab-1)))}}, required: []string{"tokens"}, answer: struct {
			Prompt string `json:"prompt"`
		}{}},
		"POST /v1/contexts": {about: "reads a text once, for requests that begin with it", members: append(pick(s.completionMembers(), "model", "prompt", "add_special_tokens", "kv_policy"),
			append(pick(s.chatMembers(), "messages", "chat_template_kwargs", "enable_thinking"), member{"name", text(64)}, member{"automatic", yesNo})...), required: []string{"name"}, answer: fixedContext{}},
		"GET /v1/contexts": {about: "the contexts of the key"}, "GET /v1/contexts/{id}": {about: "one of them, by name", answer: fixedContext{}}, "DELETE /v1/contexts/{id}": {about: "gives it up"},
		"POST /api/chat":      {about: "Ollama's chat", members: ollamaMembers(member{"messages", list(s.cfg.Limits.Messages, free)}, member{"tools", list(maxTools, free)}), required: []string{"model"}},
		"POST /api/generate":  {about: "Ollama's completion", members: ollamaMembers(member{"prompt", anyText}, member{"system", anyText}), required: []string{"model"}},
		"GET /api/tags":       {about: "the names of the model, as Ollama has them", answer: ollamaModels{}},
		"GET /api/ps":         {about: "the model that is loaded", answer: ollamaModels{}},
		"GET /api/version":    {about: "the version of Ollama whose API this is"},
		"POST /api/show":      {about: "context length, capabilities, template and sizes of a model", members: []member{{"model", text(512)}, {"name", text(512)}, {"verbose", yesNo}}, answer: ollamaShown{}},
		"POST /api/pull":      {about: "success for a model that is served; no other can be fetched", members: []member{{"model", text(512)}, {"name", text(512)}, {"stream", yesNo}}, answer: ollamaStatus{}},
		"GET /v1/models":      {about: "the names of the model", answer: modelList{}},
		"GET /v1/models/{id}": {about: "one of them", answer: modelObject{}},
		"GET /v1/cluster":     {about: "nodes, epoch, queue", answer: ClusterState{}},

		"GET /v1/cluster/history": {about: "load and memory of the last minutes, one sample a second, from the index `from` on", answer: struct {
			Object string   `json:"object"`
			Every  int64    `json:"every_ms"`
			Data   []Sample `json:"data"`
		}{}},
		"GET /v1/events": {about: "what happened to the cluster after the revision `from`; as server-sent events where those are accepted", answer: struct {
			Object string         `json:"object"`
			Data   []ClusterEvent `json:"data"`
		}{}, events: ClusterEvent{}},
		"POST /v1/nodes/{id}/drain":          {about: "a node's work moves to the others (role operator)"},
		"POST /v1/nodes/{id}/undrain":        {about: "a drained node takes a share again (role operator)"},
		"POST /v1/store/members/{id}":        {about: "a process keeps a replica of the store (the cluster key's token)", answer: StoreState{}},
		"DELETE /v1/store/members/{id}":      {about: "one that is gone for good does not (the cluster key's token)", answer: StoreState{}},
		"POST /reset_prefix_cache":           {about: "prefixes that no sequence holds are forgotten (role operator)"},
		"POST /v1/jobs":                      {about: "the body of a completion or a chat becomes a job, on disk before it is acknowledged; the header Idempotency-Key makes a second one the same", answer: Job{}},
		"GET /v1/jobs":                       {about: "the newest first; `state`, `batch_id`, `after`, `limit`", answer: JobList{}},
		"GET /v1/jobs/{id}":                  {about: "how far it is, and its result", answer: Job{}},
		"GET /v1/jobs/{id}/events":           {about: "its tokens from the index `from` on, as they come", events: JobEvent{}},
		"DELETE /v1/jobs/{id}":               {about: "cancels it; `purge=true` forgets it", answer: Job{}},
		"POST /v1/batches":                   {about: "OpenAI's batch of a file of requests"},
		"GET /v1/batches":                    {about: "the newest first; `after`, `limit`"},
		"GET /v1/batches/{id}":               {about: "how far it is"},
		"POST /v1/batches/{id}/cancel":       {about: "ends it"},
		"POST /v1/files":                     {about: "keeps a file (multipart/form-data)"},
		"GET /v1/files":                      {about: "the files"},
		"GET /v1/files/{id}":                 {about: "what a file is"},
		"GET /v1/files/{id}/content":         {about: "what is in it"},
		"DELETE /v1/files/{id}":              {about: "forgets it"},
		"GET /v1/responses/{id}":             {about: "a response that was stored; `stream=true` and `starting_after` give its events", answer: responseObject{}},
		"GET /v1/responses/{id}/input_items": {about: "what it was asked"},
		"POST /v1/responses/{id}/cancel":     {about: "ends one in the background", answer: responseObject{}},
		"DELETE /v1/responses/{id}":          {about: "forgets it"},

		"GET /health":         {about: "whether requests are served"},
		"GET /ready":          {about: "whether one that is sent now would be taken"},
		"GET /version":        {about: "of the server"},
		"GET /metrics":        {about: "Prometheus"},
		"GET /openapi.json":   {about: "this"},
		"GET /tokenizer_info": {about: "tokenizer_config.json"},
		"GET /":               {about: "the page, for browsers; else that the server runs"},
	}
}

// nullable is a schema that takes null too, as the decoders of requests do: null counts as
// absent. Clients write it for what they do not set.
func nullable(schema object) object {
	out := maps.Clone(schema)
	if of, ok := out["type"].(string); ok {
		out["type"] = []string{of, "null"}
	}
	if words, ok := out["enum"].([]string); ok {
		var values []any
		for _, w := range words {
			values = append(values, w)
		}
		out["enum"] = append(values, nil)
	}
	if of, ok := out["anyOf"].([]object); ok {
		out["anyOf"] = append(slices.Clone(of), object{"type": "null"})
	}
	if inner, ok := out["properties"].(object); ok {
		properties := object{}
		for name, of := range inner {
			properties[name] = nullable(of.(object))
		}
		out["properties"] = properties
	}
	return out
}

// pick are the members of some names.
func pick(from []member, names ...string) (out []member) {
	for _, m := range from {
		if slices.Contains(names, m.name) {
			out = append(out, m)
		}
	}
	return out
}

func openAPI(version string, table []Route, s *openAI, a *anthropicAPI, _ *ollamaAPI) object {
	t := typesOf{all: object{}}
	known := operations(s, a)
	failure := object{"description": "refused, or failed", "content": object{"application/json": object{"schema": t.ref(reflect.TypeFor[errorBody]())}}}
	paths := object{}
	// A pattern that ends in * answers for several paths.
	var routes []Route
	for _, r := range table {
		if r.Handler == nil {
			continue
		}
		r.Path = strings.Replace(strings.Replace(r.Path, "{$}", "", 1), "/*", "/{id}", 1)
		said := len(routes)
		for name := range known {
			if path, ok := strings.CutPrefix(name, r.Method+" "); ok && (path == r.Path || strings.HasPrefix(path, r.Path+"/") && strings.HasSuffix(r.Path, "}")) {
				more := r
				more.Path = path
				routes = append(routes, more)
			}
		}
		if len(routes) == said {
			routes = append(routes, r)
		}
	}
	for _, r := range routes {
		path := r.Path
		o := known[r.Method+" "+path]
		op := object{"operationId": strings.Trim(strings.NewReplacer("/", "_", "{", "", "}", "", ".", "_").Replace(strings.ToLower(r.Method)+path), "_")}
		if o.about != "" {
			op["summary"] = o.about
		} else {
			op["summary"] = "see docs/jobs.md"
		}
		if strings.Contains(path, "{id}") {
			op["parameters"] = []object{{"name": "id", "in": "path", "required": true, "schema": anyText}}
		}
		if r.Public {
			op["security"] = []object{}
		}
		if o.members != nil {
			body := object{"type": "object", "properties": object{}}
			for _, m := range o.members {
				schema := m.schema
				if !slices.Contains(o.required, m.name) {
					schema = nullable(schema)
				}
				body["properties"].(object)[m.name] = schema
			}
			if o.required != nil {
				body["required"] = o.required
			}
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": body}}}
		}
		content := object{"application/json": object{"schema": object{}}}
		if o.answer != nil {
			content["application/json"] = object{"schema": t.ref(reflect.TypeOf(o.answer))}
		}
		if o.events != nil {
			content["text/event-stream"] = object{"schema": t.ref(reflect.TypeOf(o.events))}
		}
		op["responses"] = object{"200": object{"description": "done", "content": content}, "default": failure}
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[strings.ToLower(r.Method)] = op
	}
	return object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Shoal", "version": version, "description": "docs/api.md says what members mean. Members that are not known have no effect; the header X-Ignored-Parameters names them."},
		"paths":      paths,
		"security":   []object{{"key": []string{}}},
		"components": object{"schemas": t.all, "securitySchemes": object{"key": object{"type": "http", "scheme": "bearer"}}},
	}
}

// typesOf describes Go's types as encoding/json writes them.
type typesOf struct{ all object }

// ref is a schema; structs with a name are written once.
func (t typesOf) ref(x reflect.Type) object {
	switch x.Kind() {
	case reflect.Pointer:
		return either(t.ref(x.Elem()), object{"type": "null"})
	case reflect.String:
		return anyText
	case reflect.Bool:
		return yesNo
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice, reflect.Array:
		if x.Elem().Kind() == reflect.Uint8 || x.PkgPath() != "" { // raw JSON, or with a form of its own
			return object{}
		}
		return either(object{"type": "array", "items": t.ref(x.Elem())}, object{"type": "null"})
	case reflect.Struct:
	case reflect.Interface, reflect.Map:
		return object{}
	default:
		return object{"type": "integer"}
	}
	if x.Name() == "" {
		return t.members(x)
	}
	if t.all[x.Name()] == nil {
		t.all[x.Name()] = object{} // it may hold itself
		t.all[x.Name()] = t.members(x)
	}
	return object{"$ref": "#/components/schemas/" + x.Name()}
}

func (t typesOf) members(x reflect.Type) object {
	if _, own := reflect.New(x).Interface().(interface{ MarshalJSON() ([]byte, error) }); own {
		return object{}
	}
	properties, required := object{}, []string{}
	for i := range x.NumField() {
		f := x.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			inner := t.members(f.Type)
			for k, v := range inner["properties"].(object) {
				properties[k] = v
			}
			required = append(required, inner["required"].([]string)...)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		properties[name] = t.ref(f.Type)
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}
	return object{"type": "object", "properties": properties, "required": required}
}
