package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// misfit returns the reason why a value violates a schema of /openapi.json, or "" if it does not. It
// supports the keywords that openapi.go writes, and reports others.
func misfit(root M, schema, value any) string {
	m, ok := schema.(M)
	if !ok {
		return fmt.Sprintf("%v is no schema", schema)
	}
	for keyword, want := range m {
		if why := misfitOf(root, keyword, want, value); why != "" {
			return why
		}
	}
	return ""
}

func misfitOf(root M, keyword string, want, value any) string {
	number, isNumber := value.(float64)
	text, isText := value.(string)
	list, isList := value.([]any)
	object, isObject := value.(M)
	bad := false
	switch keyword {
	case "description", "format": // for people
	case "type":
		types, several := want.([]any)
		if !several {
			types = []any{want}
		}
		bad = true
		for _, of := range types {
			bad = bad && !hasType(of, value)
		}
	case "enum":
		bad = true
		for _, v := range want.([]any) {
			bad = bad && !reflect.DeepEqual(v, value)
		}
	case "anyOf":
		bad = true
		for _, of := range want.([]any) {
			bad = bad && misfit(root, of, value) != ""
		}
	case "pattern":
		bad = isText && !regexp.MustCompile(want.(string)).MatchString(text)
	case "minimum":
		bad = isNumber && number < want.(float64)
	case "exclusiveMinimum":
		bad = isNumber && number <= want.(float64)
	case "maximum":
		bad = isNumber && number > want.(float64)
	case "maxLength":
		bad = isText && float64(len([]rune(text))) > want.(float64)
	case "maxItems":
		bad = isList && float64(len(list)) > want.(float64)
	case "minItems":
		bad = isList && float64(len(list)) < want.(float64)
	case "maxProperties":
		bad = isObject && float64(len(object)) > want.(float64)
	case "items":
		for i, v := range list {
			if why := misfit(root, want, v); why != "" {
				return fmt.Sprintf("[%d]: %s", i, why)
			}
		}
	case "properties":
		for name, of := range want.(M) {
			if v, ok := object[name]; ok {
				if why := misfit(root, of, v); why != "" {
					return name + ": " + why
				}
			}
		}
	case "additionalProperties":
		for name, v := range object {
			if why := misfit(root, want, v); why != "" {
				return name + ": " + why
			}
		}
	case "required":
		for _, name := range want.([]any) {
			if _, ok := object[name.(string)]; isObject && !ok {
				return fmt.Sprintf("%s is missing", name)
			}
		}
	default:
		return fmt.Sprintf("%s is no keyword that is known here", keyword)
	}
	if bad {
		return fmt.Sprintf("%.200s is not of %s %v", fmt.Sprint(value), keyword, want)
	}
	return ""
}

func hasType(of, value any) bool {
	switch v := value.(type) {
	case nil:
		return of == "null"
	case bool:
		return of == "boolean"
	case string:
		return of == "string"
	case float64:
		return of == "number" || of == "integer" && v == math.Trunc(v)
	case []any:
		return of == "array"
	}
	return of == "object"
}

// described passes requests on, and fails the test when the server accepts one that its own
// /openapi.json does not.
func described(t testing.TB, h http.Handler) http.Handler {
	schemas := sync.OnceValue(func() M {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/openapi.json", nil)
		r.Host = "localhost"
		h.ServeHTTP(w, r)
		var doc struct{ Paths M }
		if json.Unmarshal(w.Body.Bytes(), &doc) != nil {
			return nil // a server with keys
		}
		return doc.Paths
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Body == nil {
			h.ServeHTTP(w, r)
			return
		}
		var body bytes.Buffer
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &body), r.Body}
		status := &statusOf{ResponseWriter: w}
		h.ServeHTTP(status, r)
		if status.status/100 != 2 {
			return
		}
		if why := undescribed(schemas(), r.URL.Path, body.Bytes()); why != "" {
			t.Errorf("%s accepts %.500s, which /openapi.json does not: %s", r.URL.Path, &body, why)
		}
	})
}

// undescribed returns the reason why the body of a request violates the schema of its path, or "".
func undescribed(paths M, path string, body []byte) string {
	op := asObject(asObject(paths[path])["post"])
	schema := asObject(asObject(asObject(asObject(op["requestBody"])["content"])["application/json"])["schema"])
	if schema == nil {
		return ""
	}
	var value any
	if json.Unmarshal(body, &value) != nil {
		return ""
	}
	return misfit(schema, schema, value)
}

// statusOf notes the status of an answer.
type statusOf struct {
	http.ResponseWriter
	status int
}

func (s *statusOf) WriteHeader(status int) {
	if s.status == 0 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusOf) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(b)
}

func (s *statusOf) Unwrap() http.ResponseWriter { return s.ResponseWriter }

var curlExample = regexp.MustCompile(`(?s)curl \S*?(/(?:v1|api)/[\w/]+|/(?:de)?tokenize)[^\n']*(?:-H '[^']*'[^\n']*)*-d '([^']*)'`)

// TestExamplesFitOpenAPI: the requests that docs/api.md shows fit /openapi.json.
func TestExamplesFitOpenAPI(t *testing.T) {
	var doc struct{ Paths M }
	if err := json.Unmarshal([]byte(get(t, serve(t, &servertest.Engine{Script: servertest.Hello})+"/openapi.json").raw), &doc); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range []string{"api.md", "jobs.md", "tutorial.md", "caches.md", "../README.md"} {
		text, err := os.ReadFile("../../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range curlExample.FindAllSubmatch(text, -1) {
			found++
			body := strings.ReplaceAll(string(x[2]), "\\\n", "")
			if !json.Valid([]byte(body)) {
				t.Errorf("%s: %s is not JSON", page, body)
			} else if why := undescribed(doc.Paths, string(x[1]), []byte(body)); why != "" {
				t.Errorf("%s: %s %s does not fit: %s", page, x[1], body, why)
			}
		}
	}
	if found < 3 {
		t.Errorf("found only %d examples", found)
	}
}

// TestNullIsAbsent: every optional member may be null, for the server and for its description.
func TestNullIsAbsent(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	paths := get(t, url+"/openapi.json").body["paths"].(M)
	for path, body := range map[string]M{
		"/v1/chat/completions": {"messages": []M{
			{"role": "user", "content": "x"},
			{"role": "assistant", "content": nil, "tool_calls": []M{{"id": "a", "type": "function", "function": M{"name": "f", "arguments": "{}"}}}},
			{"role": "tool", "tool_call_id": "a", "content": "y"},
		}},
		"/v1/completions": {"prompt": "x"},
		"/v1/messages":    {"messages": []M{{"role": "user", "content": "x"}}, "max_tokens": 2},
		"/v1/responses":   {"input": "x"},
		"/tokenize":       {"prompt": "x"},
		"/api/chat":       {"model": "fake/model", "messages": []M{{"role": "user", "content": "x"}}},
	} {
		schema := at(t, paths, path, "post", "requestBody", "content", "application/json", "schema").(M)
		for name := range schema["properties"].(M) {
			if _, ok := body[name]; !ok {
				body[name] = nil
			}
		}
		if a := post(t, url+path, body); a.status != 200 {
			t.Errorf("%s with null for all that is optional: %d %s", path, a.status, a.raw)
		}
	}
}
