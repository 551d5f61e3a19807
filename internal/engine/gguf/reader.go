package gguf

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// Bounds of a header: several times the largest published files.
const (
	maxHeaderBytes = 1 << 28
	maxKeys        = 1 << 14
	maxTensors     = 1 << 18
	maxNameBytes   = 512
	maxStringBytes = 1 << 24 // a chat template, a token
	maxArray       = 1 << 24 // elements
	maxRank        = 4       // as in ggml
)

// reader parses the header. It copies only names.
type reader struct {
	data    []byte // the header, cut at maxHeaderBytes
	clipped bool   // the file is longer than data
	at      int
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.data)-r.at) {
		if r.clipped {
			panic(wrong("%w of %d bytes, at byte %d", errLong, maxHeaderBytes, r.at))
		}
		panic(wrong("%w at byte %d: %d bytes needed, %d left", errTruncated, r.at, n, len(r.data)-r.at))
	}
	b := r.data[r.at : r.at+int(n) : r.at+int(n)]
	r.at += int(n)
	return b
}

// wrong ends the parsing of a header.
func wrong(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: fmt.Errorf(format, args...)}
}

func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// bytes reads a string without copying it.
func (r *reader) bytes(most uint64) []byte {
	at := r.at
	n := r.u64()
	if n > most {
		panic(wrong("string of %d bytes at byte %d, more than %d", n, at, most))
	}
	return r.take(n)
}

// name reads and copies a key or a tensor's name.
func (r *reader) name() string {
	at := r.at
	b := r.bytes(maxNameBytes)
	switch {
	case len(b) == 0:
		panic(wrong("empty name at byte %d", at))
	case !utf8.Valid(b):
		panic(wrong("name at byte %d is not UTF-8", at))
	}
	return string(b)
}

// value checks a whole value and keeps a reference to it.
func (r *reader) value() Value {
	k := r.u32()
	v := Value{Kind: Kind(k)}
	switch v.Kind {
	case Array:
		return r.array()
	case String:
		v.raw = r.bytes(maxStringBytes)
		return v
	}
	if int64(k) >= int64(len(kinds)) {
		panic(wrong("unknown value type %d", k))
	}
	if v.raw = r.take(uint64(kinds[k].width)); v.Kind == Bool && v.raw[0] > 1 {
		panic(wrong("bool of value %d", v.raw[0]))
	}
	return v
}

func (r *reader) array() Value {
	k, n := r.u32(), r.u64()
	switch {
	case int64(k) >= int64(len(kinds)) || Kind(k) == Array:
		panic(wrong("array of %v", Kind(k)))
	case n > maxArray:
		panic(wrong("array of %d elements, more than %d", n, maxArray))
	}
	v := Value{Kind: Array, Elem: Kind(k), N: int(n)}
	if v.Elem != String {
		v.raw = r.take(n * uint64(kinds[k].width))
		return v
	}
	begin, i := r.at, 0
	if _, err := attempt.At(func() any {
		for ; i < v.N; i++ {
			r.bytes(maxStringBytes)
		}
		return nil
	}); err != nil {
		panic(wrong("element %d: %w", i, err))
	}
	v.raw = r.data[begin:r.at:r.at]
	return v
}
