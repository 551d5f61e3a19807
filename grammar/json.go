package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// jkind is a type of a JSON value.
type jkind uint8

const (
	jNull jkind = iota
	jBool
	jNumber
	jString
	jArray
	jObject
)

// jval is a JSON value whose objects keep their order. The last of members of one name
// counts.
type jval struct {
	kind jkind
	b    bool
	s    string // of a string; of a number as it was written
	list []*jval
	keys []string
	at   map[string]*jval
	own  bool // made here: members that no request can write count
}

func (v *jval) get(key string) *jval {
	if v == nil || v.kind != jObject {
		return nil
	}
	return v.at[key]
}

func (v *jval) put(key string, x *jval) {
	if _, ok := v.at[key]; !ok {
		v.keys = append(v.keys, key)
	}
	v.at[key] = x
}

const maxJSONDepth = 400

func parseJSON(text string) (*jval, error) {
	if !json.Valid([]byte(text)) {
		var x any
		err := json.Unmarshal([]byte(text), &x)
		if err == nil {
			err = errors.New("not valid JSON")
		}
		return nil, err
	}
	p := &jsonParser{s: text}
	return attempt.At(func() *jval { return p.value(0) })
}

// jsonParser reads valid JSON.
type jsonParser struct {
	s  string
	at int
}

func (p *jsonParser) blank() {
	for p.at < len(p.s) && (p.s[p.at] == ' ' || p.s[p.at] == '\n' || p.s[p.at] == '\t' || p.s[p.at] == '\r') {
		p.at++
	}
}

func (p *jsonParser) value(depth int) *jval {
	if depth > maxJSONDepth {
		panic(refused("JSON nested deeper than %d", maxJSONDepth))
	}
	p.blank()
	switch c := p.s[p.at]; c {
	case '{':
		v := &jval{kind: jObject, at: map[string]*jval{}}
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
		v := &jval{kind: jArray}
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
		return &jval{kind: jString, s: p.str()}
	case 't', 'f':
		p.at += 4
		if c == 'f' {
			p.at++
		}
		return &jval{kind: jBool, b: c == 't'}
	case 'n':
		p.at += 4
		return &jval{kind: jNull}
	}
	start := p.at
	for p.at < len(p.s) && strings.IndexByte("+-.eE0123456789", p.s[p.at]) >= 0 {
		p.at++
	}
	return &jval{kind: jNumber, s: p.s[start:p.at]}
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
	var out string
	if err := json.Unmarshal([]byte(p.s[start:p.at]), &out); err != nil {
		panic(attempt.Failure{Err: err})
	}
	return out
}

// number is exact. An exponent of more than three digits is not read.
func (v *jval) number() (*big.Rat, bool) {
	if v == nil || v.kind != jNumber {
		return nil, false
	}
	if i := strings.IndexAny(v.s, "eE"); i >= 0 && len(v.s)-i > 5 || len(v.s) > 400 {
		return nil, false
	}
	return new(big.Rat).SetString(v.s)
}

// count is a whole number that is not negative; 2.0 is one.
func (v *jval) count() (int, bool) {
	r, ok := v.number()
	if !ok || !r.IsInt() || r.Sign() < 0 || !r.Num().IsInt64() {
		return 0, false
	}
	return int(min(r.Num().Int64(), 1<<30)), true
}

// same is equality of JSON values: of numbers by value, of objects without order.
func (v *jval) same(o *jval) bool {
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

func jObj(pairs ...any) *jval {
	v := &jval{kind: jObject, at: map[string]*jval{}, own: true}
	for i := 0; i < len(pairs); i += 2 {
		v.put(pairs[i].(string), pairs[i+1].(*jval))
	}
	return v
}

func jStr(s string) *jval       { return &jval{kind: jString, s: s} }
func jInt(n int) *jval          { return &jval{kind: jNumber, s: fmt.Sprint(n)} }
func jList(list ...*jval) *jval { return &jval{kind: jArray, list: list} }
func jBoolean(b bool) *jval     { return &jval{kind: jBool, b: b} }
func (v *jval) pointer(p string) (*jval, bool) {
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
