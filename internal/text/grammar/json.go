package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// jsonKind is the type of a JSON value.
type jsonKind uint8

const (
	jNull jsonKind = iota
	jBool
	jNumber
	jString
	jArray
	jObject
)

// jsonValue is a JSON value whose objects keep their order. Of duplicate members, the last one
// counts.
type jsonValue struct {
	kind jsonKind
	b    bool
	s    string // value of a string; source text of a number
	list []*jsonValue
	keys []string
	at   map[string]*jsonValue
	own  bool // added by this package: a request cannot set it
}

func (v *jsonValue) get(key string) *jsonValue {
	if v == nil || v.kind != jObject {
		return nil
	}
	return v.at[key]
}

// text returns the value of a string, "" for any other value.
func (v *jsonValue) text() string {
	if v == nil || v.kind != jString {
		return ""
	}
	return v.s
}

func (v *jsonValue) put(key string, x *jsonValue) {
	if _, ok := v.at[key]; !ok {
		v.keys = append(v.keys, key)
	}
	v.at[key] = x
}

func (v *jsonValue) remove(key string) {
	delete(v.at, key)
	v.keys = slices.DeleteFunc(v.keys, func(k string) bool { return k == key })
}

// append appends the value as JSON.
func (v *jsonValue) append(to []byte) []byte {
	quote := func(s string) { to = append(append(append(to, '"'), regex.JSONSpelling(s)...), '"') }
	switch v.kind {
	case jNull:
		return append(to, "null"...)
	case jBool:
		return strconv.AppendBool(to, v.b)
	case jNumber:
		return append(to, v.s...)
	case jString:
		quote(v.s)
		return to
	case jArray:
		to = append(to, '[')
		for i, x := range v.list {
			if i > 0 {
				to = append(to, ',')
			}
			to = x.append(to)
		}
		return append(to, ']')
	}
	to = append(to, '{')
	for i, k := range v.keys {
		if i > 0 {
			to = append(to, ',')
		}
		quote(k)
		to = v.at[k].append(append(to, ':'))
	}
	return append(to, '}')
}

const maxJSONDepth = 400

func parseJSON(text string) (*jsonValue, error) {
	if !json.Valid([]byte(text)) {
		var x any
		err := json.Unmarshal([]byte(text), &x)
		if err == nil {
			err = errors.New("not valid JSON")
		}
		return nil, err
	}
	p := &jsonParser{s: text}
	return attempt.At(func() *jsonValue { return p.value(0) })
}

// jsonParser parses valid JSON.
type jsonParser struct {
	s  string
	at int
}

func (p *jsonParser) blank() {
	for p.at < len(p.s) && (p.s[p.at] == ' ' || p.s[p.at] == '\n' || p.s[p.at] == '\t' || p.s[p.at] == '\r') {
		p.at++
	}
}

func (p *jsonParser) value(depth int) *jsonValue {
	if depth > maxJSONDepth {
		panic(refused("JSON nested deeper than %d", maxJSONDepth))
	}
	p.blank()
	switch c := p.s[p.at]; c {
	case '{':
		v := &jsonValue{kind: jObject, at: map[string]*jsonValue{}}
		for p.at++; ; p.at++ {
			p.blank()
			if p.s[p.at] == '}' {
				break
			}
			key := p.str()
			p.blank()
			p.at++ // the colon
			x := p.value(depth + 1)
			v.put(key, x)
			p.blank()
			if p.s[p.at] == '}' {
				break
			}
		}
		p.at++
		return v
	case '[':
		v := &jsonValue{kind: jArray}
		for p.at++; ; p.at++ {
			p.blank()
			if p.s[p.at] == ']' {
				break
			}
			x := p.value(depth + 1)
			v.list = append(v.list, x)
			p.blank()
			if p.s[p.at] == ']' {
				break
			}
		}
		p.at++
		return v
	case '"':
		return &jsonValue{kind: jString, s: p.str()}
	case 't', 'f':
		p.at += 4
		if c == 'f' {
			p.at++
		}
		return &jsonValue{kind: jBool, b: c == 't'}
	case 'n':
		p.at += 4
		return &jsonValue{kind: jNull}
	}
	start := p.at
	for p.at < len(p.s) && strings.IndexByte("+-.eE0123456789", p.s[p.at]) >= 0 {
		p.at++
	}
	return &jsonValue{kind: jNumber, s: p.s[start:p.at]}
}

func (p *jsonParser) str() string {
	start := p.at
	plain := true
	for p.at++; p.s[p.at] != '"'; p.at++ {
		if p.s[p.at] == '\\' {
			p.at++
			plain = false
		}
	}
	p.at++
	if plain {
		return strings.ToValidUTF8(p.s[start+1:p.at-1], "\uFFFD")
	}
	var out []byte
	for rest := p.s[start+1 : p.at-1]; rest != ""; {
		// Up to the next unpaired surrogate, which has no UTF-8 and is kept in WTF-8.
		at, half := loneSurrogate(rest)
		var s string
		if err := json.Unmarshal([]byte(`"`+rest[:at]+`"`), &s); err != nil {
			panic(attempt.Failure{Err: err})
		}
		out = append(out, s...)
		if half == 0 {
			break
		}
		out = append(out, 0xE0|byte(half>>12), 0x80|byte(half>>6)&0x3F, 0x80|byte(half)&0x3F)
		rest = rest[at+len(`\uD800`):]
	}
	return string(out)
}

// loneSurrogate finds the first escape of an unpaired surrogate inside a JSON string.
func loneSurrogate(s string) (at int, half rune) {
	escape := func(i int) rune {
		if i+6 > len(s) || s[i] != '\\' || s[i+1] != 'u' {
			return 0
		}
		n, _ := strconv.ParseUint(s[i+2:i+6], 16, 16)
		return rune(n)
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		c := escape(i)
		switch {
		case !utf16.IsSurrogate(c):
			i++
		case utf16.DecodeRune(c, escape(i+6)) != utf8.RuneError:
			i += 11
		default:
			return i, c
		}
	}
	return len(s), 0
}

// number returns the exact value. Exponents of more than three digits are not supported.
func (v *jsonValue) number() (*big.Rat, bool) {
	if v == nil || v.kind != jNumber {
		return nil, false
	}
	if i := strings.IndexAny(v.s, "eE"); i >= 0 && len(v.s)-i > 5 || len(v.s) > 400 {
		return nil, false
	}
	return new(big.Rat).SetString(v.s)
}

// count returns a non-negative integer; 2.0 is one.
func (v *jsonValue) count() (int, bool) {
	r, ok := v.number()
	if !ok || !r.IsInt() || r.Sign() < 0 || !r.Num().IsInt64() {
		return 0, false
	}
	return int(min(r.Num().Int64(), 1<<30)), true
}

// same is equality of JSON values: numbers by value, objects without order.
func (v *jsonValue) same(o *jsonValue) bool {
	if v.kind != o.kind {
		return false
	}
	switch v.kind {
	case jBool:
		return v.b == o.b
	case jNumber:
		a, ok := v.number()
		b, also := o.number()
		return ok && also && a.Cmp(b) == 0 || v.s == o.s
	case jString:
		return v.s == o.s
	case jArray:
		if len(v.list) != len(o.list) {
			return false
		}
		for i := range v.list {
			if !v.list[i].same(o.list[i]) {
				return false
			}
		}
	case jObject:
		if len(v.keys) != len(o.keys) {
			return false
		}
		for _, k := range v.keys {
			if x := o.at[k]; x == nil || !v.at[k].same(x) {
				return false
			}
		}
	}
	return true
}

func jObj(pairs ...any) *jsonValue {
	v := &jsonValue{kind: jObject, at: map[string]*jsonValue{}, own: true}
	for i := 0; i < len(pairs); i += 2 {
		v.put(pairs[i].(string), pairs[i+1].(*jsonValue))
	}
	return v
}

func jStr(s string) *jsonValue            { return &jsonValue{kind: jString, s: s} }
func jInt(n int) *jsonValue               { return &jsonValue{kind: jNumber, s: fmt.Sprint(n)} }
func jList(list ...*jsonValue) *jsonValue { return &jsonValue{kind: jArray, list: list} }
func jBoolean(b bool) *jsonValue          { return &jsonValue{kind: jBool, b: b} }
func (v *jsonValue) pointer(p string) (*jsonValue, bool) {
	for _, part := range strings.Split(p, "/")[1:] {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch v.kind {
		case jObject:
			v = v.at[part]
		case jArray:
			i := 0
			if _, err := fmt.Sscanf(part, "%d", &i); err != nil || i < 0 || i >= len(v.list) {
				return nil, false
			}
			v = v.list[i]
		default:
			return nil, false
		}
		if v == nil {
			return nil, false
		}
	}
	return v, true
}
