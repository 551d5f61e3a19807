package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// schema is the part of JSON Schema that /openapi.json uses.
type schema struct {
	Ref         string             `json:"$ref"`
	Type        orNull             `json:"type"`
	Description string             `json:"description"`
	Enum        nonNull            `json:"enum"`
	AnyOf       []schema           `json:"anyOf"`
	Items       *schema            `json:"items"`
	Properties  map[string]*schema `json:"properties"`
	Required    []string           `json:"required"`
	Values      *schema            `json:"additionalProperties"`
	Min         *float64           `json:"minimum"`
	Above       *float64           `json:"exclusiveMinimum"`
	Max         *float64           `json:"maximum"`
	MaxLength   *int               `json:"maxLength"`
	MaxItems    *int               `json:"maxItems"`
}

type content map[string]struct{ Schema schema }

// openAPI is the part of the description that the page shows.
type openAPI struct {
	Paths map[string]map[string]struct {
		Summary     string
		Security    *[]any // present and empty: no key is asked for
		RequestBody struct{ Content content }
		Responses   map[string]struct{ Content content }
	}
	Components struct{ Schemas map[string]*schema }
}

// writeRoutes is docs/http.md: what the server says of its routes.
func (c *manCmd) writeRoutes(e *env) error {
	resp, err := c.client().Do(e.ctx, http.MethodGet, "/openapi.json", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var api openAPI
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&api); err != nil {
		return fmt.Errorf("/openapi.json does not decode: %w", err)
	}
	m := markdown{w: e.stdout}
	m.printf("# Routes\n\nWritten by `shoal man --http` from `/openapi.json` of a `shoal up` with the bundled model; a test holds it to what the server says. Bounds are those of that server; in a request null counts as absent. What members mean: [api.md](api.md), [jobs.md](jobs.md). From Go: [client.md](client.md).\n")
	for _, path := range slices.Sorted(maps.Keys(api.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(api.Paths[path])) {
			op := api.Paths[path][method]
			m.printf("\n## `%s %s`\n\n%s", strings.ToUpper(method), path, strings.ToUpper(op.Summary[:1])+op.Summary[1:])
			for _, kind := range []string{"application/json", "text/event-stream"} {
				if s := op.Responses["200"].Content[kind].Schema; s.Ref != "" {
					m.printf("; %s %s", map[string]string{"application/json": "answers", "text/event-stream": "as a stream"}[kind], s.words())
				}
			}
			m.printf(".")
			if op.Security != nil && len(*op.Security) == 0 {
				m.printf(" No key is asked for.")
			}
			m.printf("\n")
			body := op.RequestBody.Content["application/json"].Schema
			for name, p := range body.Properties {
				body.Properties[name] = p.given()
			}
			m.members(body)
		}
	}
	m.printf("\n# Types\n")
	for _, name := range slices.Sorted(maps.Keys(api.Components.Schemas)) {
		m.printf("\n## `%s`\n", name)
		s := *api.Components.Schemas[name]
		if s.Properties == nil {
			m.printf("\nAny JSON.\n")
		}
		s.Required = nil // the server writes all that is not said to be absent
		m.members(s)
	}
	return m.err
}

func (m *markdown) members(s schema) {
	if len(s.Properties) == 0 {
		return
	}
	m.printf("\n| member | |\n| --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		required := ""
		if slices.Contains(s.Required, name) {
			required = ", required"
		}
		m.printf("| `%s` | %s%s |\n", name, s.Properties[name].words(), required)
	}
}

// orNull is a type, or a type and null, which the table leaves out: in requests null counts as
// absent everywhere.
type orNull string

func (o *orNull) UnmarshalJSON(text []byte) error {
	var several []string
	if json.Unmarshal(text, &several) == nil && len(several) > 0 {
		*o = orNull(several[0])
		return nil
	}
	return json.Unmarshal(text, (*string)(o))
}

// nonNull are the words of an enum without null.
type nonNull []string

func (n *nonNull) UnmarshalJSON(text []byte) error {
	var all []*string
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, w := range all {
		if w != nil {
			*n = append(*n, *w)
		}
	}
	return nil
}

// given is a schema of a request's member without null, which counts as absent.
func (s *schema) given() *schema {
	out := *s
	if last := len(out.AnyOf) - 1; last >= 0 && out.AnyOf[last].Type == "null" {
		out.AnyOf = out.AnyOf[:last]
	}
	return &out
}

// words are what a value may be.
func (s *schema) words() string {
	within := func(what string) string {
		switch {
		case s.Min != nil && s.Max != nil:
			return fmt.Sprintf("%s from %.15g to %.15g", what, *s.Min, *s.Max)
		case s.Above != nil && s.Max != nil:
			return fmt.Sprintf("%s above %.15g, to %.15g", what, *s.Above, *s.Max)
		}
		return what
	}
	atMost := func(n *int, what string) string {
		if n == nil {
			return ""
		}
		return fmt.Sprintf(", at most %d%s", *n, what)
	}
	switch {
	case s.Description != "":
		return s.Description
	case s.Ref != "":
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	case s.AnyOf != nil:
		var all []string
		for i := range s.AnyOf {
			all = append(all, s.AnyOf[i].words())
		}
		return strings.Join(all, " or ")
	case s.Enum != nil:
		return "one of `" + strings.Join(s.Enum, "`, `") + "`"
	case s.Type == "array":
		return "list of " + cmp.Or(s.Items, &schema{}).words() + atMost(s.MaxItems, "")
	case s.Type == "object" && s.Values != nil:
		return "object of " + s.Values.words()
	case s.Type == "object" && s.Properties != nil:
		return "object of `" + strings.Join(slices.Sorted(maps.Keys(s.Properties)), "`, `") + "`"
	case s.Type == "":
		return "any JSON"
	}
	return within(string(s.Type)) + atMost(s.MaxLength, " bytes")
}
