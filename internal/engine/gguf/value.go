package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Value is a metadata value. It points into the file; its methods return copies.
type Value struct {
	Kind Kind
	Elem Kind // of an array
	N    int  // elements of an array
	raw  []byte
}

func (v Value) Text() (string, bool) {
	if v.Kind != String {
		return "", false
	}
	return string(v.raw), true
}

func (v Value) Bool() (value, ok bool) {
	if v.Kind != Bool {
		return false, false
	}
	return v.raw[0] == 1, true
}

// Int returns the value of an integer of any width. It also accepts a non-empty array of equal
// integers, which some writers use for settings that may differ by layer. false: another type,
// different elements, or a value beyond int64.
func (v Value) Int() (int64, bool) {
	if v.Kind != Array {
		return whole(v.Kind, v.raw)
	}
	if v.N == 0 || v.Elem == String {
		return 0, false
	}
	width := kinds[v.Elem].width
	first, ok := whole(v.Elem, v.raw)
	for i := 1; ok && i < v.N; i++ {
		next, _ := whole(v.Elem, v.raw[i*width:])
		ok = next == first
	}
	return first, ok
}

// Number returns the value of a float or an integer.
func (v Value) Number() (float64, bool) {
	switch v.Kind {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.raw))), true
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.raw)), true
	}
	n, ok := v.Int()
	return float64(n), ok && v.Kind != Array
}

// Texts copies an array of strings.
func (v Value) Texts() ([]string, bool) {
	if v.Kind != Array || v.Elem != String {
		return nil, false
	}
	out, at := make([]string, v.N), 0 // every element takes at least 8 bytes of the file
	for i := range out {
		n := int(binary.LittleEndian.Uint64(v.raw[at:]))
		at += 8
		out[i] = string(v.raw[at : at+n])
		at += n
	}
	return out, true
}

// Ints copies an array of integers.
func (v Value) Ints() ([]int64, bool) {
	if v.Kind != Array || v.Elem == String || v.Elem == Bool || v.Elem == Float32 || v.Elem == Float64 {
		return nil, false
	}
	out, width := make([]int64, v.N), kinds[v.Elem].width
	for i := range out {
		n, ok := whole(v.Elem, v.raw[i*width:])
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

// Bools copies an array of bools.
func (v Value) Bools() ([]bool, bool) {
	if v.Kind != Array || v.Elem != Bool {
		return nil, false
	}
	out := make([]bool, v.N)
	for i := range out {
		out[i] = v.raw[i] != 0
	}
	return out, true
}

// Float32s copies an array of float32.
func (v Value) Float32s() ([]float32, bool) {
	if v.Kind != Array || v.Elem != Float32 {
		return nil, false
	}
	out := make([]float32, v.N)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))
	}
	return out, true
}

func whole(k Kind, raw []byte) (int64, bool) {
	if len(raw) < max(1, kinds[k].width) {
		return 0, false // of a Value that no file holds
	}
	switch k {
	case Uint8:
		return int64(raw[0]), true
	case Int8:
		return int64(int8(raw[0])), true
	case Uint16:
		return int64(binary.LittleEndian.Uint16(raw)), true
	case Int16:
		return int64(int16(binary.LittleEndian.Uint16(raw))), true
	case Uint32:
		return int64(binary.LittleEndian.Uint32(raw)), true
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(raw))), true
	case Uint64:
		n := binary.LittleEndian.Uint64(raw)
		return int64(n), n <= math.MaxInt64
	case Int64:
		return int64(binary.LittleEndian.Uint64(raw)), true
	}
	return 0, false
}

// String formats the value for messages, shortened.
func (v Value) String() string {
	switch {
	case v.Kind == String:
		return fmt.Sprintf("%q", clip(string(v.raw[:min(len(v.raw), 200)])))
	case v.Kind == Array:
		return fmt.Sprintf("%d values of %v", v.N, v.Elem)
	case len(v.raw) == 0:
		return "nothing"
	case v.Kind == Bool:
		return fmt.Sprint(v.raw[0] == 1)
	}
	if n, ok := whole(v.Kind, v.raw); ok {
		return fmt.Sprint(n)
	}
	f, _ := v.Number()
	return fmt.Sprint(f)
}
