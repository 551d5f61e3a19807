package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
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

	table   *Table            // what may be read; nil: anything
	spelled map[string]string // what a client calls a member; nil: as it is
}

// newFields is an object without members, for parameters that come under other names.
func newFields(table *Table) *fields {
	return &fields{raw: map[string]json.RawMessage{}, read: map[string]bool{}, table: table, spelled: map[string]string{}}
}

// as has the members of f that words names, under the names that words gives them and that
// table has. Its errors name them as f does.
func (f *fields) as(words map[string]string, table *Table) *fields {
	out := newFields(table)
	for from, to := range words {
		if v := f.get(from); v != nil {
			out.set(to, v, from)
		}
	}
	return out
}

// set gives the object a member, which the client spells otherwise.
func (f *fields) set(name string, v json.RawMessage, spelled string) {
	f.raw[name], f.spelled[name] = v, spelled
}

// parseFields decodes an object with the parameters of a table; nil: with any.
func parseFields(body []byte, table *Table) (*fields, *apiError) {
	f := &fields{read: map[string]bool{}, table: table}
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
	if f.table != nil {
		f.table.of(name)
	}
	return f.unlisted(name)
}

// unlisted returns a member that the table does not have: a value other than "off" is refused.
func (f *fields) unlisted(name string) json.RawMessage {
	f.read[name] = true
	v := f.raw[name]
	if isNull(v) {
		return nil
	}
	return v
}

// ignore reads members that change nothing of an answer.
func (f *fields) ignore(names ...string) {
	for _, name := range names {
		f.get(name)
	}
}

// object returns the members of a member that is an object, by their own table; nil: it is
// absent, or none.
func (f *fields) object(name string) *fields {
	v := f.get(name)
	if v == nil {
		return nil
	}
	o, e := parseFields(v, f.table.of(name).Members)
	if e != nil {
		f.fail(invalid(name, "'%s' must be an object.", name))
		return nil
	}
	return o
}

// failWithin notes the error of a member of a member.
func (f *fields) failWithin(name string, o *fields) {
	if o.err != nil {
		f.fail(invalid(name+"."+o.err.param, "%s", o.err.message))
	}
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

// number reads a finite number within the bounds of the table and says whether it was there.
func (f *fields) number(name string, dst *float32) bool {
	v := f.get(name)
	if v == nil {
		return false
	}
	p := f.table.of(name).as(KindNumber)
	x, err := strconv.ParseFloat(string(v), 64) // a JSON number has no spelling of NaN or Inf
	switch {
	case err != nil || !isNumber(v):
		f.fail(invalid(name, "'%s' must be a number.", name))
	case !(x >= p.Low && x <= p.High):
		f.fail(invalid(name, "'%s' must be between %g and %g, got %g.", name, p.Low, p.High, x))
	case p.Above && x == p.Low:
		f.fail(invalid(name, "'%s' must be more than %g.", name, p.Low))
	default:
		*dst = float32(x)
		return true
	}
	return false
}

// integer reads a whole number within the bounds of the table and says whether it was there.
func (f *fields) integer(name string, dst *int64) bool {
	v := f.get(name)
	if v == nil {
		return false
	}
	p := f.table.of(name).as(KindInteger)
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
		f.fail(invalid(name, "'%s' must be an integer.", name))
	case x < lo || x > hi:
		f.fail(invalid(name, "'%s' must be between %d and %d, got %d.", name, lo, hi, x))
	default:
		*dst = x
		return true
	}
	return false
}

// most reads a number of tokens to generate; -1 is as many as there is room for.
func (f *fields) most(name string, dst *int) bool {
	var x int64
	if !f.integer(name, &x) {
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

// str reads a string that is no longer than the table allows and says whether it was there.
// What it may be besides its length is left to the caller.
func (f *fields) str(name string, dst *string) bool {
	v := f.get(name)
	if v == nil {
		return false
	}
	p := f.table.of(name).as(KindText)
	var s string
	switch {
	case unmarshal(v, &s) != nil:
		f.fail(invalid(name, "'%s' must be a string.", name))
	case p.Most > 0 && len(s) > p.Most:
		f.fail(invalid(name, "'%s' is longer than %d bytes.", name, p.Most))
	default:
		*dst = s
		return true
	}
	return false
}
