package jsonbody

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Object is a JSON object whose members are decoded one by one, so that every
// error names its member. null counts as absent. The first error wins.
type Object struct {
	Raw  map[string]json.RawMessage
	Read map[string]bool // members that were asked for
	Err  *apierr.Error

	Table   *Table            // members that may be read; nil: any
	spelled map[string]string // the client's names of members that have another name here
}

// NewObject returns an object without members, for parameters that come under other names.
func NewObject(table *Table) *Object {
	return &Object{Raw: map[string]json.RawMessage{}, Read: map[string]bool{}, Table: table, spelled: map[string]string{}}
}

// As returns the members of f that words names, under their new names, which table has. Errors
// use the names of f.
func (f *Object) As(words map[string]string, table *Table) *Object {
	out := NewObject(table)
	for from, to := range words {
		if v := f.Get(from); v != nil {
			out.Set(to, v, from)
		}
	}
	return out
}

// Set adds a member that has another name in the client's request.
func (f *Object) Set(name string, v json.RawMessage, spelled string) {
	f.Raw[name], f.spelled[name] = v, spelled
}

// Parse decodes an object with the parameters of a table; nil: with any.
func Parse(body []byte, table *Table) (*Object, *apierr.Error) {
	f := &Object{Read: map[string]bool{}, Table: table}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, apierr.InvalidCode("", "invalid_json", "The request body is empty; send a JSON object.")
	}
	if err := json.Unmarshal(body, &f.Raw); err != nil {
		var syn *json.SyntaxError
		if errors.As(err, &syn) {
			return nil, apierr.InvalidCode("", "invalid_json", "The request body is not valid JSON (byte %d: %v).", syn.Offset, syn)
		}
		return nil, apierr.InvalidCode("", "invalid_json", "The request body must be a JSON object.")
	}
	if f.Raw == nil {
		return nil, apierr.InvalidCode("", "invalid_json", "The request body must be a JSON object.")
	}
	return f, nil
}

func (f *Object) Fail(e *apierr.Error) {
	if f.Err != nil || e == nil {
		return
	}
	name, rest, _ := strings.Cut(e.Param, ".")
	if as := f.spelled[name]; as != "" && as != name {
		e.Message = strings.ReplaceAll(e.Message, "'"+name, "'"+as)
		if e.Param = as; rest != "" {
			e.Param += "." + rest
		}
	}
	f.Err = e
}

// Get returns the member, or nil when it is absent or null.
func (f *Object) Get(name string) json.RawMessage {
	if f.Table != nil {
		f.Table.Of(name)
	}
	return f.Unlisted(name)
}

// Unlisted returns a member that the table does not have, to refuse its values.
func (f *Object) Unlisted(name string) json.RawMessage {
	f.Read[name] = true
	v := f.Raw[name]
	if IsNull(v) {
		return nil
	}
	return v
}

// Ignore marks members as read that have no effect on an answer.
func (f *Object) Ignore(names ...string) {
	for _, name := range names {
		f.Get(name)
	}
}

// Object returns the members of a member that is an object, by their own table; nil: it is
// absent, or none.
func (f *Object) Object(name string) *Object {
	v := f.Get(name)
	if v == nil {
		return nil
	}
	o, e := Parse(v, f.Table.Of(name).Members)
	if e != nil {
		f.Fail(apierr.Invalid(name, "'%s' must be an object.", name))
		return nil
	}
	return o
}

// FailWithin records the error of a nested object.
func (f *Object) FailWithin(name string, o *Object) {
	if o.Err != nil {
		f.Fail(apierr.Invalid(name+"."+o.Err.Param, "%s", o.Err.Message))
	}
}

// Unread returns the names of members without effect, those that were not read; null is absent.
// The names go into a header, so their length and number are bounded.
func (f *Object) Unread() []string {
	var out []string
	for name, v := range f.Raw {
		if !f.Read[name] && !IsNull(v) {
			out = append(out, HeaderName(name))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), MaxNamed)]
}

const MaxNamed = 64

// HeaderName returns a name in a form that a header may hold.
func HeaderName(name string) string {
	name = strconv.QuoteToASCII(name)
	if name = name[1 : len(name)-1]; len(name) > MaxNamed {
		name = name[:MaxNamed] + "..."
	}
	return name
}

func (f *Object) Has(name string) bool { return f.Get(name) != nil }

// Number reads a finite number within the bounds of the table and reports whether it was there.
func (f *Object) Number(name string, dst *float32) bool {
	v := f.Get(name)
	if v == nil {
		return false
	}
	p := f.Table.Of(name).As(KindNumber)
	x, err := strconv.ParseFloat(string(v), 64) // a JSON number has no spelling of NaN or Inf
	switch {
	case err != nil || !IsNumber(v):
		f.Fail(apierr.Invalid(name, "'%s' must be a number.", name))
	case !(x >= p.Low && x <= p.High):
		f.Fail(apierr.Invalid(name, "'%s' must be between %g and %g, got %g.", name, p.Low, p.High, x))
	case p.Above && x == p.Low:
		f.Fail(apierr.Invalid(name, "'%s' must be more than %g.", name, p.Low))
	default:
		*dst = float32(x)
		return true
	}
	return false
}

// Integer reads a whole number within the bounds of the table and reports whether it was there.
func (f *Object) Integer(name string, dst *int64) bool {
	v := f.Get(name)
	if v == nil {
		return false
	}
	p := f.Table.Of(name).As(KindInteger)
	lo, hi := p.Min, p.Max
	switch p.Format {
	case "int32":
		lo, hi = math.MinInt32, math.MaxInt32
	case "int64":
		lo, hi = math.MinInt64, math.MaxInt64
	}
	x, ok := strictjson.Int(v)
	switch {
	case !ok:
		f.Fail(apierr.Invalid(name, "'%s' must be an integer.", name))
	case x < lo || x > hi:
		f.Fail(apierr.Invalid(name, "'%s' must be between %d and %d, got %d.", name, lo, hi, x))
	default:
		*dst = x
		return true
	}
	return false
}

// TokenLimit reads a number of tokens to generate; -1 is as many as there is room for.
func (f *Object) TokenLimit(name string, dst *int) bool {
	var x int64
	if !f.Integer(name, &x) {
		return false
	}
	if *dst = int(x); x < 0 {
		*dst = math.MaxInt32
	}
	return true
}

func IsNumber(v json.RawMessage) bool { return v[0] == '-' || v[0] >= '0' && v[0] <= '9' }

func (f *Object) Boolean(name string, dst *bool) bool {
	v := f.Get(name)
	switch string(v) {
	case "":
		return false
	case "true", "false":
		*dst = string(v) == "true"
		return true
	}
	f.Fail(apierr.Invalid(name, "'%s' must be true or false.", name))
	return false
}

// Text reads a string that is no longer than the table allows and reports whether it was there. The
// caller checks everything but the length.
func (f *Object) Text(name string, dst *string) bool {
	v := f.Get(name)
	if v == nil {
		return false
	}
	p := f.Table.Of(name).As(KindText)
	var s string
	switch {
	case Unmarshal(v, &s) != nil:
		f.Fail(apierr.Invalid(name, "'%s' must be a string.", name))
	case p.MaxLen > 0 && len(s) > p.MaxLen:
		f.Fail(apierr.Invalid(name, "'%s' is longer than %d bytes.", name, p.MaxLen))
	default:
		*dst = s
		return true
	}
	return false
}
