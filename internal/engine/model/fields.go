package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// fields reads one JSON object by exact keys and keeps the first error, so that a parser reads like
// a list of its fields. A missing or null key takes the default.
type fields struct {
	file   string
	prefix string // "rope_scaling." inside that object
	raw    map[string]json.RawMessage
	err    error
}

// maxConfigBytes bounds config.json. Label tables make real ones a few hundred kilobytes long.
const maxConfigBytes = 16 << 20

func parseFields(file string, data []byte) (*fields, error) {
	if len(data) > maxConfigBytes {
		return nil, &Error{File: file, Kind: ErrFormat, Detail: fmt.Sprintf("%d bytes, more than %d", len(data), maxConfigBytes)}
	}
	f := &fields{file: file}
	if err := modelfile.Unmarshal(data, &f.raw); err != nil {
		return nil, &Error{File: file, Kind: ErrFormat, Detail: "not a JSON object: " + err.Error()}
	}
	if f.raw == nil {
		return nil, &Error{File: file, Kind: ErrFormat, Detail: "not a JSON object: null"}
	}
	return f, nil
}

func (f *fields) fail(key string, kind error, format string, args ...any) {
	if f.err == nil {
		f.err = &Error{File: f.file, Field: f.prefix + key, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
}

func (f *fields) has(key string) bool {
	v, ok := f.raw[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// given reports whether key is present, even as null.
func (f *fields) given(key string) bool {
	_, ok := f.raw[key]
	return ok
}

// get decodes key into dst and reports whether it was present.
func (f *fields) get(key string, dst any, want string) bool {
	if !f.has(key) {
		return false
	}
	if err := json.Unmarshal(f.raw[key], dst); err != nil {
		f.fail(key, ErrFormat, "%s is not %s", clip(modelfile.Words(string(f.raw[key]))), want)
		return false
	}
	return true
}

// Size reads a count in [1, most]. Without a default (def 0) it is required.
func (f *fields) Size(key string, def, most int) int {
	var v int64
	if !f.get(key, &v, "a whole number") {
		if def == 0 {
			f.fail(key, ErrMissing, "missing")
		}
		return def
	}
	if v < 1 || v > int64(most) {
		f.fail(key, ErrOutOfRange, "%d is outside 1..%d", v, most)
		return def
	}
	return int(v)
}

// Index is Size that may be 0 and always has a default.
func (f *fields) Index(key string, def, most int) int {
	var v int64
	if !f.get(key, &v, "a whole number") {
		return def
	}
	if v < 0 || v > int64(most) {
		f.fail(key, ErrOutOfRange, "%d is outside 0..%d", v, most)
		return def
	}
	return int(v)
}

// Number reads a finite number in [lo, hi]; def if it is missing.
func (f *fields) Number(key string, def, lo, hi float64) float64 {
	v := def
	if !f.get(key, &v, "a number") {
		return def
	}
	if math.IsNaN(v) || v < lo || v > hi {
		f.fail(key, ErrOutOfRange, "%g is outside %g..%g", v, lo, hi)
		return def
	}
	return v
}

// Required is Number without a default.
func (f *fields) Required(key string, lo, hi float64) float64 {
	if !f.has(key) {
		f.fail(key, ErrMissing, "missing")
		return lo
	}
	return f.Number(key, lo, lo, hi)
}

func (f *fields) Bool(key string, def bool) bool {
	v := def
	if !f.get(key, &v, "true or false") {
		return def
	}
	return v
}

// must refuses a flag that is not want.
func (f *fields) must(key string, want bool) {
	if f.Bool(key, want) != want {
		f.fail(key, ErrUnsupported, "%v: only %v is implemented for this family", !want, want)
	}
}

// either is the first key, or the second if only that one is there.
func (f *fields) either(key, other string) string {
	if !f.has(key) && f.has(other) {
		return other
	}
	return key
}

// uniform replaces a list of equal numbers by the number.
func (f *fields) uniform(key string) {
	var list []json.RawMessage
	if !f.has(key) || json.Unmarshal(f.raw[key], &list) != nil {
		return
	}
	for i, v := range list {
		if !bytes.Equal(v, list[0]) {
			f.fail(key, ErrUnsupported, "entry %d is %s, after %s: numbers of their own for layers are not implemented; all must be equal", i, clip(string(v)), clip(string(list[0])))
			return
		}
	}
	if len(list) == 0 {
		f.fail(key, ErrFormat, "is an empty list; want a whole number, or one for each layer")
		return
	}
	f.raw[key] = list[0]
}

func (f *fields) Text(key, def string) string {
	v := def
	if !f.get(key, &v, "a string") {
		return def
	}
	return v
}

// OneOf reads a word of a fixed set, with or without a prefix such as "torch.".
func (f *fields) OneOf(key, def string, known ...string) string {
	v := f.Text(key, def)
	if slices.Contains(known, v) {
		return v
	}
	f.fail(key, ErrUnsupported, "%q is not supported; known: %s", clip(v), strings.Join(known, ", "))
	return def
}

// sameActivation maps transformers' aliases of one function to the usual name.
var sameActivation = map[string]string{"swish": "silu", "gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh"}

// activation refuses any function except want, which is also the default.
func (f *fields) activation(key, want string) {
	if sameActivation[f.Text(key, want)] != want {
		f.OneOf(key, want, want)
	}
}

// Object opens a nested object, or returns nil.
func (f *fields) Object(key string) *fields {
	in := &fields{file: f.file, prefix: f.prefix + key + "."}
	if !f.get(key, &in.raw, "an object") {
		return nil
	}
	return in
}

// Layers reads a list of layers, each below the count; nil if it is missing.
func (f *fields) Layers(key string, layers int) []int {
	var list []int64
	if !f.get(key, &list, "a list of layers") {
		return nil
	}
	var out []int
	for _, i := range list {
		if i < 0 || i >= int64(layers) {
			f.fail(key, ErrOutOfRange, "layer %d of %d", i, layers)
			return nil
		}
		out = append(out, int(i))
	}
	return out
}

// only refuses keys that are not in known, a list separated by spaces.
func (f *fields) only(known string) {
	for _, key := range slices.Sorted(maps.Keys(f.raw)) {
		if !slices.Contains(strings.Fields(known), key) && f.has(key) {
			f.fail(key, ErrUnsupported, "is not known here; known: %s", strings.ReplaceAll(known, " ", ", "))
		}
	}
}

// take keeps the first error of a nested object.
func (f *fields) take(in *fields) {
	if f.err == nil {
		f.err = in.err
	}
}

// maxTokenIDs bounds the lists of bos and eos tokens.
const maxTokenIDs = 256

// Tokens reads a token id or a list of them. Ids outside the vocabulary have no effect: they are
// dropped with a warning.
func (f *fields) Tokens(key string, c *Config) []int32 {
	if !f.has(key) {
		return nil
	}
	var list []int64
	var one int64
	if json.Unmarshal(f.raw[key], &one) == nil {
		list = []int64{one}
	} else if json.Unmarshal(f.raw[key], &list) != nil {
		f.fail(key, ErrFormat, "%s is neither a token id nor a list of them", clip(modelfile.Words(string(f.raw[key]))))
		return nil
	}
	if len(list) > maxTokenIDs {
		f.fail(key, ErrOutOfRange, "%d token ids, more than %d", len(list), maxTokenIDs)
		return nil
	}
	var ids []int32
	for _, id := range list {
		if id < 0 || id >= int64(c.Vocab) {
			c.Warnings = append(c.Warnings, &Error{File: f.file, Field: f.prefix + key, Kind: ErrOutOfRange,
				Detail: fmt.Sprintf("token %d is outside the vocabulary of %d and is ignored", id, c.Vocab)})
			continue
		}
		ids = append(ids, int32(id))
	}
	return ids
}
