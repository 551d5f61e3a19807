package jsonbody

import (
	"maps"
	"slices"
)

// Schema is JSON Schema, as OpenAPI 3.1 has it.
type Schema = map[string]any

// schema describes the values that the decoder takes.
func (p *Param) schema() Schema {
	out := p.typeSchema()
	if p.About != "" {
		out["description"] = p.About
	}
	return out
}

func (p *Param) typeSchema() Schema {
	switch p.Kind {
	case KindBool:
		return Schema{"type": "boolean"}
	case KindInteger:
		if p.Format != "" {
			return Schema{"type": "integer", "format": p.Format}
		}
		return Schema{"type": "integer", "minimum": p.Min, "maximum": p.Max}
	case KindNumber:
		if p.Above {
			return Schema{"type": "number", "exclusiveMinimum": p.Low, "maximum": p.High}
		}
		return Schema{"type": "number", "minimum": p.Low, "maximum": p.High}
	case KindText:
		return p.textSchema()
	case KindList:
		out := Schema{"type": "array", "items": p.Items.schema()}
		if p.MaxLen > 0 {
			out["maxItems"] = p.MaxLen
		}
		if p.MinLen > 0 {
			out["minItems"] = p.MinLen
		}
		return out
	case KindObject:
		if p.Members == nil {
			return Schema{"type": "object"}
		}
		return Schema{"type": "object", "properties": p.Members.Properties(nil)}
	case KindMap:
		return Schema{"type": "object", "additionalProperties": p.Items.schema(), "maxProperties": p.MaxLen}
	case KindEither:
		any := make([]Schema, len(p.Any))
		for i := range p.Any {
			any[i] = p.Any[i].schema()
		}
		return Schema{"anyOf": any}
	}
	return Schema{}
}

func (p *Param) textSchema() Schema {
	words := Schema{"type": "string", "enum": p.Words}
	switch {
	case p.Pattern != "":
		return Schema{"anyOf": []Schema{words, {"type": "string", "pattern": p.Pattern}}}
	case p.Words != nil:
		return words
	case p.MaxLen > 0:
		return Schema{"type": "string", "maxLength": p.MaxLen}
	}
	return Schema{"type": "string"}
}

// Properties returns the schemas of all parameters that are shown. Optional ones may be null.
func (t *Table) Properties(required []string) Schema {
	out := Schema{}
	for i := range t.list {
		p := &t.list[i]
		switch {
		case p.Hidden:
		case slices.Contains(required, p.Name):
			out[p.Name] = p.schema()
		default:
			out[p.Name] = nullable(p.schema())
		}
	}
	return out
}

// nullable adds null to a schema. Decoders count null as absent, and clients send it for unset
// parameters.
func nullable(schema Schema) Schema {
	out := maps.Clone(schema)
	if of, ok := out["type"].(string); ok {
		out["type"] = []string{of, "null"}
	}
	if words, ok := out["enum"].([]string); ok {
		values := make([]any, 0, len(words)+1)
		for _, w := range words {
			values = append(values, w)
		}
		out["enum"] = append(values, nil)
	}
	if of, ok := out["anyOf"].([]Schema); ok {
		out["anyOf"] = append(slices.Clone(of), Schema{"type": "null"})
	}
	return out
}
