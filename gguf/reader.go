package gguf

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Bounds of a header: several times what the largest published files hold.
const (
	maxHeaderBytes = 1 << 28
	maxKeys        = 1 << 14
	maxTensors     = 1 << 18
	maxNameBytes   = 512
	maxStringBytes = 1 << 24 // a chat template, a token
	maxArray       = 1 << 24 // elements
	maxRank        = 4       // ggml's
)

// reader walks the header. It copies only names.
type reader struct {
	data    []byte // the header, cut at maxHeaderBytes
	clipped bool   // the file is longer than data
	at      int
}

func (r *reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.data)-r.at) {
		if r.clipped {
			return nil, fmt.Errorf("%w of %d bytes, at byte %d", errLong, maxHeaderBytes, r.at)
		}
		return nil, fmt.Errorf("%w at byte %d: %d bytes wanted, %d left", errTruncated, r.at, n, len(r.data)-r.at)
	}
	b := r.data[r.at : r.at+int(n) : r.at+int(n)]
	r.at += int(n)
	return b, nil
}

func (r *reader) u32() (uint32, error) {
	b, err := r.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) u64() (uint64, error) {
	b, err := r.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// bytes reads a string in place.
func (r *reader) bytes(most uint64) ([]byte, error) {
	at := r.at
	n, err := r.u64()
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, fmt.Errorf("string of %d bytes at byte %d, more than %d", n, at, most)
	}
	return r.take(n)
}

// name reads and copies a key or a tensor's name.
func (r *reader) name() (string, error) {
	at := r.at
	b, err := r.bytes(maxNameBytes)
	switch {
	case err != nil:
		return "", err
	case len(b) == 0:
		return "", fmt.Errorf("empty name at byte %d", at)
	case !utf8.Valid(b):
		return "", fmt.Errorf("name at byte %d is not UTF-8", at)
	}
	return string(b), nil
}

// value checks a value to its end and keeps where it lies.
func (r *reader) value() (Value, error) {
	k, err := r.u32()
	if err != nil {
		return Value{}, err
	}
	v := Value{Kind: Kind(k)}
	switch v.Kind {
	case Array:
		return r.array()
	case String:
		v.raw, err = r.bytes(maxStringBytes)
		return v, err
	}
	if int64(k) >= int64(len(kinds)) {
		return v, fmt.Errorf("unknown value type %d", k)
	}
	if v.raw, err = r.take(uint64(kinds[k].width)); err == nil && v.Kind == Bool && v.raw[0] > 1 {
		err = fmt.Errorf("bool of value %d", v.raw[0])
	}
	return v, err
}

func (r *reader) array() (Value, error) {
	v := Value{Kind: Array}
	k, err := r.u32()
	if err != nil {
		return v, err
	}
	n, err := r.u64()
	switch {
	case err != nil:
		return v, err
	case int64(k) >= int64(len(kinds)) || Kind(k) == Array:
		return v, fmt.Errorf("array of %v", Kind(k))
	case n > maxArray:
		return v, fmt.Errorf("array of %d elements, more than %d", n, maxArray)
	}
	v.Elem, v.N = Kind(k), int(n)
	if v.Elem != String {
		v.raw, err = r.take(n * uint64(kinds[k].width))
		return v, err
	}
	begin := r.at
	for i := range v.N {
		if _, err := r.bytes(maxStringBytes); err != nil {
			return v, fmt.Errorf("element %d: %w", i, err)
		}
	}
	v.raw = r.data[begin:r.at:r.at]
	return v, nil
}
