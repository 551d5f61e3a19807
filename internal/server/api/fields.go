package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/strictjson"
)

// fields is a JSON object whose members are decoded one by one, so that every
// error names its member. null counts as absent. The first error wins.
type fields struct {
	raw  map[string]json.RawMessage
	read map[string]bool // members that were asked for
	err  *apiError
	chat bool // of a chat: tools are known

	spelled map[string]string // what a client calls a member; nil: as it is

	// Bounds of another protocol; 0: OpenAI's.
	stops   int     // number of stop strings
	hottest float64 // temperature
}

// as has the members of f that words names, under the names that words gives them. Its
// errors name them as f does.
func (f *fields) as(words map[string]string) *fields {
	out := &fields{raw: map[string]json.RawMessage{}, read: map[string]bool{}, chat: true, spelled: map[string]string{}}
	for from, to := range words {
		if v := f.get(from); v != nil {
			out.raw[to], out.spelled[to] = v, from
		}
	}
	return out
}

// unmarshal decodes a part of a request. Every part is decoded by it or as fields, so that
// names match exactly at every depth.
func unmarshal(doc []byte, v any) error { return strictjson.Unmarshal(doc, v) }

func parseFields(body []byte) (*fields, *apiError) {
	f := &fields{read: map[string]bool{}}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, invalidCode("", "invalid_json", "The request body is empty; send a JSON object.")
	}
	if err := json.Unmarshal(body, &f.raw); err != nil {
		var syn *json.SyntaxError
		if errors.As(err, &syn) {
			return nil, invalidCode("", "invalid_json", "The request body is not valid JSON (byte %d: %v).", syn.Offset, syn)
		}
		return nil, invalidCode("", "invalid_json", "The request body must be a JSON object.")
	}
	if f.raw == nil {
		return nil, invalidCode("", "invalid_json", "The request body must be a JSON object.")
	}
	return f, nil
}

func (f *fields) fail(e *apiError) {
	if f.err != nil || e == nil {
		return
	}
	name, rest, _ := strings.Cut(e.param, ".")
	if as := f.spelled[name]; as != "" && as != name {
		e.message = strings.ReplaceAll(e.message, "'"+name, "'"+as)
		if e.param = as; rest != "" {
			e.param += "." + rest
		}
	}
	f.err = e
}

// get returns the member, or nil when it is absent or null.
func (f *fields) get(name string) json.RawMessage {
	f.read[name] = true
	v := f.raw[name]
	if isNull(v) {
		return nil
	}
	return v
}

// unread are the members that nobody asked for, so that have no effect; null is absent.
// Names are cut and bounded in number: they go into a header.
func (f *fields) unread() []string {
	var out []string
	for name, v := range f.raw {
		if !f.read[name] && !isNull(v) {
			out = append(out, headerName(name))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxNamed)]
}

const maxNamed = 64

// headerName is a name as a header may hold it.
func headerName(name string) string {
	name = strconv.QuoteToASCII(name)
	if name = name[1 : len(name)-1]; len(name) > maxNamed {
		name = name[:maxNamed] + "..."
	}
	return name
}

func (f *fields) has(name string) bool { return f.get(name) != nil }

func isNull(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// number reads a finite number of [lo, hi] and says whether it was there.
func (f *fields) number(name string, dst *float32, lo, hi float64) bool {
	v := f.get(name)
	if v == nil {
		return false
	}
	x, err := strconv.ParseFloat(string(v), 64) // a JSON number has no spelling of NaN or Inf
	if err != nil || !isNumber(v) {
		f.fail(invalid(name, "'%s' must be a number.", name))
		return false
	}
	if !(x >= lo && x <= hi) {
		f.fail(invalid(name, "'%s' must be between %g and %g, got %g.", name, lo, hi, x))
		return false
	}
	*dst = float32(x)
	return true
}

// integer reads a whole number of [lo, hi] and says whether it was there.
func (f *fields) integer(name string, dst *int64, lo, hi int64) bool {
	v := f.get(name)
	if v == nil {
		return false
	}
	x, ok := strictjson.Int(v)
	if !ok {
		f.fail(invalid(name, "'%s' must be an integer.", name))
		return false
	}
	if x < lo || x > hi {
		f.fail(invalid(name, "'%s' must be between %d and %d, got %d.", name, lo, hi, x))
		return false
	}
	*dst = x
	return true
}

// most reads a number of tokens to generate; -1 is as many as there is room for.
func (f *fields) most(name string, dst *int) bool {
	var x int64
	if !f.integer(name, &x, -1, math.MaxInt32) {
		return false
	}
	if *dst = int(x); x < 0 {
		*dst = math.MaxInt32
	}
	return true
}

func isNumber(v json.RawMessage) bool { return v[0] == '-' || v[0] >= '0' && v[0] <= '9' }

func (f *fields) boolean(name string, dst *bool) bool {
	v := f.get(name)
	switch string(v) {
	case "":
		return false
	case "true", "false":
		*dst = string(v) == "true"
		return true
	}
	f.fail(invalid(name, "'%s' must be true or false.", name))
	return false
}

func (f *fields) str(name string, dst *string, maxBytes int) bool {
	v := f.get(name)
	if v == nil {
		return false
	}
	var s string
	if unmarshal(v, &s) != nil {
		f.fail(invalid(name, "'%s' must be a string.", name))
		return false
	}
	if len(s) > maxBytes {
		f.fail(invalid(name, "'%s' is longer than %d bytes.", name, maxBytes))
		return false
	}
	*dst = s
	return true
}

// elements calls each for the elements of a JSON array at a place of the request, until an
// error. There may be at most limit, so that a small body cannot ask for a large slice.
func elements(at, what string, v json.RawMessage, limit int, each func(i int, e json.RawMessage) *apiError) *apiError {
	dec := json.NewDecoder(bytes.NewReader(v))
	if _, err := dec.Token(); err != nil {
		return invalid("", "malformed array")
	}
	for i := 0; dec.More(); i++ {
		if i >= limit {
			return invalid(at, "'%s' holds more than %d %s.", at, limit, what)
		}
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return invalid("", "malformed array")
		}
		if e := each(i, raw); e != nil {
			return e
		}
	}
	return nil
}

// parseIDs reads "[1,2,3]" into token ids below vocab. v is valid JSON.
func parseIDs(v json.RawMessage, vocab, limit int) (ids []int32, problem string) {
	if len(v) == 0 || v[0] != '[' {
		return nil, "must be a list of token ids"
	}
	i := 1
	for {
		for i < len(v) && (v[i] <= ' ' || v[i] == ',') { // the JSON is valid: commas stand where they belong
			i++
		}
		if i >= len(v) || v[i] == ']' {
			return ids, ""
		}
		start := i
		for i < len(v) && v[i] > ' ' && v[i] != ',' && v[i] != ']' {
			i++
		}
		id, ok := strictjson.Int(v[start:i])
		switch {
		case !ok && !digits(v[start:i]), id < 0:
			return nil, "must hold only token ids (integers from 0)"
		case !ok, id >= int64(vocab):
			return nil, "holds a token id outside the vocabulary of " + strconv.Itoa(vocab) + " tokens"
		}
		if len(ids) >= limit {
			return nil, "holds more than " + strconv.Itoa(limit) + " tokens"
		}
		ids = append(ids, int32(id))
	}
}

func digits(v []byte) bool { return len(bytes.Trim(v, "0123456789")) == 0 }

func mediaType(header string) string {
	t, _, err := mime.ParseMediaType(header)
	if err != nil {
		return ""
	}
	return t
}
