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

// Fields reads one JSON object by exact keys and keeps the first error, so that a parser reads like
// a list of its fields. A missing or null key takes the default.
type Fields struct {
	Raw map[string]json.RawMessage
	Err error // the first

	file   string
	prefix string // "rope_scaling." inside that object
}

// MaxConfigBytes bounds config.json. Label tables make real ones a few hundred kilobytes long.
const MaxConfigBytes = 16 << 20

// ParseFields parses an object. file names it in errors.
func ParseFields(file string, data []byte) (*Fields, error) {
	if len(data) > MaxConfigBytes {
		return nil, &Error{File: file, Kind: ErrFormat, Detail: fmt.Sprintf("%d bytes, more than %d", len(data), MaxConfigBytes)}
	}
	f := &Fields{file: file}
	if err := modelfile.Unmarshal(data, &f.Raw); err != nil {
		return nil, &Error{File: file, Kind: ErrFormat, Detail: "not a JSON object: " + err.Error()}
	}
	if f.Raw == nil {
		return nil, &Error{File: file, Kind: ErrFormat, Detail: "not a JSON object: null"}
	}
	return f, nil
}

// Fail keeps the error of a setting, unless there is an earlier one.
func (f *Fields) Fail(key string, kind error, format string, args ...any) {
	if f.Err == nil {
		f.Err = &Error{File: f.file, Field: f.prefix + key, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
}

// Has reports whether a key is there and not null.
func (f *Fields) Has(key string) bool {
	v, ok := f.Raw[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// Drop removes a key.
func (f *Fields) Drop(key string) { delete(f.Raw, key) }

// Given reports whether key is present, even as null.
func (f *Fields) Given(key string) bool {
	_, ok := f.Raw[key]
	return ok
}

// Get decodes key into dst and reports whether it was present.
func (f *Fields) Get(key string, dst any, want string) bool {
	if !f.Has(key) {
		return false
	}
	if err := json.Unmarshal(f.Raw[key], dst); err != nil {
		f.Fail(key, ErrFormat, "%s is not %s", Clip(modelfile.Words(string(f.Raw[key]))), want)
		return false
	}
	return true
}

// Size reads a count in [1, most]. Without a default (def 0) it is required.
func (f *Fields) Size(key string, def, most int) int {
	var v int64
	if !f.Get(key, &v, "a whole number") {
		if def == 0 {
			f.Fail(key, ErrMissing, "missing")
		}
		return def
	}
	if v < 1 || v > int64(most) {
		f.Fail(key, ErrOutOfRange, "%d is outside 1..%d", v, most)
		return def
	}
	return int(v)
}

// Index is Size that may be 0 and always has a default.
func (f *Fields) Index(key string, def, most int) int {
	var v int64
	if !f.Get(key, &v, "a whole number") {
		return def
	}
	if v < 0 || v > int64(most) {
		f.Fail(key, ErrOutOfRange, "%d is outside 0..%d", v, most)
		return def
	}
	return int(v)
}

// Number reads a finite number in [lo, hi]; def if it is missing.
func (f *Fields) Number(key string, def, lo, hi float64) float64 {
	v := def
	if !f.Get(key, &v, "a number") {
		return def
	}
	if math.IsNaN(v) || v < lo || v > hi {
		f.Fail(key, ErrOutOfRange, "%g is outside %g..%g", v, lo, hi)
		return def
	}
	return v
}

// Required is Number without a default.
func (f *Fields) Required(key string, lo, hi float64) float64 {
	if !f.Has(key) {
		f.Fail(key, ErrMissing, "missing")
		return lo
	}
	return f.Number(key, lo, lo, hi)
}

func (f *Fields) Bool(key string, def bool) bool {
	v := def
	if !f.Get(key, &v, "true or false") {
		return def
	}
	return v
}

// MustBe refuses a flag with another value than want.
func (f *Fields) MustBe(key string, want bool) {
	if f.Bool(key, want) != want {
		f.Refuse(key, "%v: only %v is implemented for this family", !want, want)
	}
}

// Either returns the first key, or the second if only that one is there.
func (f *Fields) Either(key, other string) string {
	if !f.Has(key) && f.Has(other) {
		return other
	}
	return key
}

// Uniform replaces a list of equal numbers by the number.
func (f *Fields) Uniform(key string) {
	var list []json.RawMessage
	if !f.Has(key) || json.Unmarshal(f.Raw[key], &list) != nil {
		return
	}
	for i, v := range list {
		if !bytes.Equal(v, list[0]) {
			f.Refuse(key, "entry %d is %s, after %s: numbers of their own for layers are not implemented; all must be equal",
				i, Clip(string(v)), Clip(string(list[0])))
			return
		}
	}
	if len(list) == 0 {
		f.Fail(key, ErrFormat, "is an empty list; want a whole number, or one for each layer")
		return
	}
	f.Raw[key] = list[0]
}

func (f *Fields) Text(key, def string) string {
	v := def
	if !f.Get(key, &v, "a string") {
		return def
	}
	return v
}

// OneOf reads a word of a fixed set, with or without a prefix such as "torch.".
func (f *Fields) OneOf(key, def string, known ...string) string {
	v := f.Text(key, def)
	if slices.Contains(known, v) {
		return v
	}
	f.Refuse(key, "%q is not supported; known: %s", Clip(v), strings.Join(known, ", "))
	return def
}

// SameActivation maps transformers' aliases of one function to the usual name.
var SameActivation = map[string]string{"swish": "silu", "gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh"}

// ReadActivation refuses any function except want, which is also the default.
func (f *Fields) ReadActivation(key, want string) {
	if SameActivation[f.Text(key, want)] != want {
		f.OneOf(key, want, want)
	}
}

// Object opens a nested object, or returns nil.
func (f *Fields) Object(key string) *Fields {
	in := &Fields{file: f.file, prefix: f.prefix + key + "."}
	if !f.Get(key, &in.Raw, "an object") {
		return nil
	}
	return in
}

// Layers reads a list of layers, each below the count; nil if it is missing.
func (f *Fields) Layers(key string, layers int) []int {
	var list []int64
	if !f.Get(key, &list, "a list of layers") {
		return nil
	}
	var out []int
	for _, i := range list {
		if i < 0 || i >= int64(layers) {
			f.Fail(key, ErrOutOfRange, "layer %d of %d", i, layers)
			return nil
		}
		out = append(out, int(i))
	}
	return out
}

// Only refuses keys that are not in known, a list separated by spaces.
func (f *Fields) Only(known string) {
	for _, key := range slices.Sorted(maps.Keys(f.Raw)) {
		if !slices.Contains(strings.Fields(known), key) && f.Has(key) {
			f.Refuse(key, "is not known here; known: %s", strings.ReplaceAll(known, " ", ", "))
		}
	}
}

// Take keeps the first error of a nested object.
func (f *Fields) Take(in *Fields) {
	if f.Err == nil {
		f.Err = in.Err
	}
}

// maxTokenIDs bounds the lists of bos and eos tokens.
const maxTokenIDs = 256

// Tokens reads a token id or a list of them. Ids outside the vocabulary have no effect: they are
// dropped with a warning.
func (f *Fields) Tokens(key string, c *Config) []int32 {
	if !f.Has(key) {
		return nil
	}
	var list []int64
	var one int64
	if json.Unmarshal(f.Raw[key], &one) == nil {
		list = []int64{one}
	} else if json.Unmarshal(f.Raw[key], &list) != nil {
		f.Fail(key, ErrFormat, "%s is neither a token id nor a list of them", Clip(modelfile.Words(string(f.Raw[key]))))
		return nil
	}
	if len(list) > maxTokenIDs {
		f.Fail(key, ErrOutOfRange, "%d token ids, more than %d", len(list), maxTokenIDs)
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

// Refuse fails because a setting is not implemented.
func (f *Fields) Refuse(key, format string, args ...any) {
	f.Fail(key, ErrUnsupported, format, args...)
}
