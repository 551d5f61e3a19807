package python

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"
)

// Limits of a JSON document, whose size the caller has limited.
const (
	maxJSONDepth = 100
	MaxIntDigits = 4300 // Python's own limit
)

// DecodeJSON decodes one JSON document. Objects keep their order and integers stay integers. If
// literal is set, every string, including keys, is marked as Literal.
func DecodeJSON(data []byte, literal bool) (Value, error) {
	d := jsonDecoder{dec: json.NewDecoder(bytes.NewReader(data)), mark: Trusted}
	if literal {
		d.mark = Literal
	}
	d.dec.UseNumber()
	v, err := d.value(0)
	if err != nil {
		return nil, fmt.Errorf("jinja: decoding JSON: %w", err)
	}
	if _, err := d.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("jinja: decoding JSON: something follows the document at byte %d", d.dec.InputOffset())
	}
	return v, nil
}

type jsonDecoder struct {
	dec  *json.Decoder
	mark func(string) Str
}

func (d *jsonDecoder) value(depth int) (Value, error) {
	tok, err := d.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case json.Delim:
		if depth == maxJSONDepth {
			return nil, fmt.Errorf("nested deeper than %d", maxJSONDepth)
		}
		if t == '[' {
			return d.list(depth + 1)
		}
		return d.dict(depth + 1)
	case json.Number:
		return jsonNumber(string(t))
	case string:
		return d.mark(t), nil
	}
	return tok, nil // nil and bool
}

func (d *jsonDecoder) list(depth int) (Value, error) {
	l := NewList()
	for d.dec.More() {
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	_, err := d.dec.Token()
	return l, err
}

func (d *jsonDecoder) dict(depth int) (Value, error) {
	m := NewDict()
	for d.dec.More() {
		tok, err := d.dec.Token()
		if err != nil {
			return nil, err
		}
		key := tok.(string) // the decoder guarantees a string
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		m.Put(DictKey{kind: 's', s: key}, d.mark(key), v)
	}
	_, err := d.dec.Token()
	return m, err
}

func jsonNumber(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) { // Python reads 1e999 as inf
			return nil, err
		}
		return f, nil
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	if len(s) > MaxIntDigits {
		return nil, fmt.Errorf("an integer has %d digits; the limit is %d", len(s), MaxIntDigits)
	}
	b, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("not a number: %q", s)
	}
	return b, nil
}
