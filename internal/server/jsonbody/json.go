package jsonbody

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Unmarshal decodes a part of a request. Every part is decoded by it or as an [Object], so that
// names match exactly at every depth.
func Unmarshal(doc []byte, v any) error { return strictjson.Unmarshal(doc, v) }

func IsNull(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// Elements calls each for the elements of a JSON array at a place of the request, until an
// error. There may be at most limit, so that a small body cannot ask for a large slice.
func Elements(at, what string, v json.RawMessage, limit int, each func(i int, e json.RawMessage) *apierr.Error) *apierr.Error {
	dec := json.NewDecoder(bytes.NewReader(v))
	if _, err := dec.Token(); err != nil {
		return apierr.Invalid(at, "'%s' must be a JSON array.", at)
	}
	for i := 0; dec.More(); i++ {
		if i >= limit {
			return apierr.Invalid(at, "'%s' holds more than %d %s.", at, limit, what)
		}
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return apierr.Invalid(at, "'%s' must be a JSON array.", at)
		}
		if e := each(i, raw); e != nil {
			return e
		}
	}
	return nil
}

// ParseIDs reads "[1,2,3]" into token ids below vocab. v is valid JSON.
func ParseIDs(v json.RawMessage, vocab, limit int) (ids []int32, problem string) {
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

// StringOf returns the value of a JSON string; "" for any other JSON.
func StringOf(v json.RawMessage) (text string) {
	_ = Unmarshal(v, &text)
	return text
}

func EmptyValue(v json.RawMessage) bool { return OneOf(`[]`, `{}`, `""`, `false`)(v) }

func OneOf(values ...string) func(json.RawMessage) bool {
	return func(v json.RawMessage) bool {
		c := CompactJSON(v)
		return slices.Contains(values, c)
	}
}

func CompactJSON(v json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return ""
	}
	return b.String()
}

// Marshal is json.Marshal without escapes of <, > and &.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// MustJSON encodes a value that always can be encoded.
func MustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("jsonbody: " + err.Error())
	}
	return b
}

func OrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
