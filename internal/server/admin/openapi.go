package admin

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// The description of the API is made from the table of routes, whose docs name the parameters of
// requests and the structs that answers are written from.

func (s *API) handleOpenAPI(w http.ResponseWriter, _ *http.Request) {
	s.http.WriteJSON(w, http.StatusOK, openAPI(s.version, s.http.Routes()))
}

func openAPI(version string, routes []httpserver.Route) jsonbody.Schema {
	t := typesOf{all: jsonbody.Schema{}}
	failure := jsonbody.Schema{"description": "refused, or failed", "content": jsonContent(t.ref(reflect.TypeFor[apierr.ErrorBody]()))}
	paths := map[string]jsonbody.Schema{}
	for i := range routes {
		r := &routes[i]
		for _, d := range r.Docs {
			path := docPath(r.Path, d.Path)
			if paths[path] == nil {
				paths[path] = jsonbody.Schema{}
			}
			op := t.operation(r, &d, path)
			op["responses"].(jsonbody.Schema)["default"] = failure
			paths[path][strings.ToLower(r.Method)] = op
		}
	}
	return jsonbody.Schema{
		"openapi": "3.1.0",
		"info": jsonbody.Schema{"title": "Shoal", "version": version,
			"description": "docs/api.md describes the members. Unknown members have no effect; the header X-Ignored-Parameters " +
				"names them."},
		"paths":    paths,
		"security": []jsonbody.Schema{{"key": []string{}}},
		"components": jsonbody.Schema{"schemas": t.all,
			"securitySchemes": jsonbody.Schema{"key": jsonbody.Schema{"type": "http", "scheme": "bearer"}}},
	}
}

// docPath returns a path of a route: a pattern that ends in * may answer for several.
func docPath(route, below string) string {
	route = strings.Replace(route, "{$}", "", 1)
	if prefix, wild := strings.CutSuffix(route, "/*"); wild {
		if below == "" {
			below = "/{id}"
		}
		return prefix + below
	}
	return route
}

func jsonContent(schema jsonbody.Schema) jsonbody.Schema {
	return jsonbody.Schema{"application/json": jsonbody.Schema{"schema": schema}}
}

func (t typesOf) operation(r *httpserver.Route, d *httpserver.Doc, path string) jsonbody.Schema {
	op := jsonbody.Schema{"summary": d.About, "operationId": operationID(r.Method, path)}
	if strings.Contains(path, "{id}") {
		op["parameters"] = []jsonbody.Schema{{"name": "id", "in": "path", "required": true, "schema": jsonbody.Schema{"type": "string"}}}
	}
	if r.Public {
		op["security"] = []jsonbody.Schema{}
	}
	if d.Params != nil {
		body := jsonbody.Schema{"type": "object", "properties": d.Params.Properties(d.Required)}
		if d.Required != nil {
			body["required"] = d.Required
		}
		op["requestBody"] = jsonbody.Schema{"required": true, "content": jsonContent(body)}
	}
	content := jsonContent(jsonbody.Schema{})
	if d.Answer != nil {
		content = jsonContent(t.ref(reflect.TypeOf(d.Answer)))
	}
	if d.Events != nil {
		content["text/event-stream"] = jsonbody.Schema{"schema": t.ref(reflect.TypeOf(d.Events))}
	}
	op["responses"] = jsonbody.Schema{"200": jsonbody.Schema{"description": "done", "content": content}}
	return op
}

func operationID(method, path string) string {
	return strings.Trim(strings.NewReplacer("/", "_", "{", "", "}", "", ".", "_").Replace(strings.ToLower(method)+path), "_")
}

func nullOr(schema jsonbody.Schema) jsonbody.Schema {
	return jsonbody.Schema{"anyOf": []jsonbody.Schema{schema, {"type": "null"}}}
}

// typesOf describes Go's types as encoding/json writes them.
type typesOf struct{ all jsonbody.Schema }

// ref returns a schema; structs with a name are written once.
func (t typesOf) ref(x reflect.Type) jsonbody.Schema {
	switch x.Kind() {
	case reflect.Pointer:
		return nullOr(t.ref(x.Elem()))
	case reflect.String:
		return jsonbody.Schema{"type": "string"}
	case reflect.Bool:
		return jsonbody.Schema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return jsonbody.Schema{"type": "number"}
	case reflect.Slice, reflect.Array:
		if x.Elem().Kind() == reflect.Uint8 || x.PkgPath() != "" { // raw JSON, or with a form of its own
			return jsonbody.Schema{}
		}
		return nullOr(jsonbody.Schema{"type": "array", "items": t.ref(x.Elem())})
	case reflect.Struct:
	case reflect.Interface, reflect.Map:
		return jsonbody.Schema{}
	default:
		return jsonbody.Schema{"type": "integer"}
	}
	if x.Name() == "" {
		return t.members(x)
	}
	if t.all[x.Name()] == nil {
		t.all[x.Name()] = jsonbody.Schema{} // it may hold itself
		t.all[x.Name()] = t.members(x)
	}
	return jsonbody.Schema{"$ref": "#/components/schemas/" + x.Name()}
}

func (t typesOf) members(x reflect.Type) jsonbody.Schema {
	if _, own := reflect.New(x).Interface().(interface{ MarshalJSON() ([]byte, error) }); own {
		return jsonbody.Schema{}
	}
	properties, required := jsonbody.Schema{}, []string{}
	for i := range x.NumField() {
		f := x.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			inner := t.members(f.Type)
			for k, v := range inner["properties"].(jsonbody.Schema) {
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
	return jsonbody.Schema{"type": "object", "properties": properties, "required": required}
}
