package gguf

import "fmt"

// Keys lists the metadata keys in the order of the file.
func (f *File) Keys() []string { return f.keys }

func (f *File) Value(key string) (Value, bool) {
	v, ok := f.meta[key]
	return v, ok
}

// Text returns the string of a key, or def if the key is absent. A value of another type is an
// ErrValue, also in the methods below.
func (f *File) Text(key, def string) (string, error) {
	v, ok := f.meta[key]
	if !ok {
		return def, nil
	}
	s, ok := v.Text()
	if !ok {
		return def, f.wrong(key, v, "a string")
	}
	return s, nil
}

// Bool returns the bool of a key, or def.
func (f *File) Bool(key string, def bool) (bool, error) {
	v, ok := f.meta[key]
	if !ok {
		return def, nil
	}
	b, ok := v.Bool()
	if !ok {
		return def, f.wrong(key, v, "a bool")
	}
	return b, nil
}

// Int returns the integer of a key, which must be within [lo, hi], or def.
func (f *File) Int(key string, def, lo, hi int64) (int64, error) {
	v, ok := f.meta[key]
	if !ok {
		return def, nil
	}
	n, ok := v.Int()
	if !ok || n < lo || n > hi {
		return def, f.wrong(key, v, fmt.Sprintf("an integer in %d..%d", lo, hi))
	}
	return n, nil
}

// Texts returns the strings of an array; nil if the key is absent.
func (f *File) Texts(key string) ([]string, error) {
	v, ok := f.meta[key]
	if !ok {
		return nil, nil
	}
	s, ok := v.Texts()
	if !ok {
		return nil, f.wrong(key, v, "an array of strings")
	}
	return s, nil
}

// Ints returns the integers of an array; nil if the key is absent.
func (f *File) Ints(key string) ([]int64, error) {
	v, ok := f.meta[key]
	if !ok {
		return nil, nil
	}
	n, ok := v.Ints()
	if !ok {
		return nil, f.wrong(key, v, "an array of integers")
	}
	return n, nil
}

// Float32s returns the numbers of an array; nil if the key is absent.
func (f *File) Float32s(key string) ([]float32, error) {
	v, ok := f.meta[key]
	if !ok {
		return nil, nil
	}
	n, ok := v.Float32s()
	if !ok {
		return nil, f.wrong(key, v, "an array of float32")
	}
	return n, nil
}

func (f *File) wrong(key string, v Value, want string) error {
	return &Error{Path: f.Path, Key: key, Kind: ErrValue, Detail: fmt.Sprintf("%v (%v) is not %s", v, v.Kind, want)}
}
