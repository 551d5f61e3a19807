// Package safetensors reads headers of untrusted safetensors files: it bounds every number and
// name before anything is allocated by it.
package safetensors

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Limits of a safetensors header. The first is the format's own; the others are several times the
// largest published checkpoints.
const (
	MaxHeaderBytes = 100_000_000
	MaxTensors     = 1 << 18
	MaxNameBytes   = 512
	maxRank        = 8
)

// storedBytes is the element size of each type whose shape is compared with its bytes. Only F32,
// BF16, F16 and F8_E4M3 can be weights. Tensors that are not read may have any type.
var storedBytes = map[string]int64{
	"F32": 4, "BF16": 2, "F16": 2,
	"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2,
	"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}

// Entry is a tensor of a header.
type Entry struct {
	Name       string
	Stored     string // element type as the header names it
	Shape      []int
	Begin, End int64 // bytes [Begin, End) of the data section
}

// Error is a header that is malformed: as a whole, or in the entry of a tensor.
type Error struct {
	Tensor string // name; empty: the header as a whole
	Detail string
}

func (e *Error) Error() string {
	if e.Tensor == "" {
		return "safetensors: " + e.Detail
	}
	return fmt.Sprintf("safetensors: tensor %q: %s", clip(e.Tensor), e.Detail)
}

// Parse parses the JSON of a header and checks every tensor against size, the bytes of the
// data section. Shape times element size, if the type is known, must equal the tensor's range. All
// ranges together must tile the section.
func Parse(header []byte, size int64) ([]Entry, error) {
	s := &scanner{data: header}
	var entries []Entry
	seen := map[string]bool{}
	err := s.object(MaxNameBytes, func(name string) error {
		if seen[name] {
			return inTensor(name, "named twice in the header")
		}
		seen[name] = true
		if name == "__metadata__" {
			return s.object(MaxNameBytes, func(string) error { return s.skipText() })
		}
		if len(entries) == MaxTensors {
			return fmt.Errorf("more than %d tensors", MaxTensors)
		}
		e, err := readEntry(s, name, size)
		if err != nil {
			return inTensor(name, "%v", err)
		}
		entries = append(entries, e)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = checkLayout(entries, size)
	}
	var e *Error
	switch {
	case err == nil:
		return entries, nil
	case errors.As(err, &e):
		return nil, err
	}
	return nil, malformed("%v", err)
}

func readEntry(s *scanner, name string, size int64) (Entry, error) {
	e := Entry{Name: name}
	var offsets []int64
	seen := map[string]bool{}
	err := s.object(MaxNameBytes, func(key string) (err error) {
		if seen[key] {
			return s.errorf("key %q given twice", clip(key))
		}
		seen[key] = true
		switch key {
		case "dtype":
			e.Stored, err = s.text(MaxNameBytes)
		case "shape":
			e.Shape, err = readShapeList(s)
		case "data_offsets":
			err = s.list('[', ']', func() error {
				v, err := s.whole()
				if offsets = append(offsets, v); len(offsets) > 2 {
					return s.errorf("more than two data_offsets")
				}
				return err
			})
		default:
			err = s.errorf("unknown key %q", clip(key))
		}
		return err
	})
	if err != nil {
		return e, err
	}
	for _, key := range []string{"dtype", "shape", "data_offsets"} {
		if !seen[key] {
			return e, fmt.Errorf("no %s", key)
		}
	}
	if len(offsets) != 2 {
		return e, fmt.Errorf("%d data_offsets, want 2", len(offsets))
	}
	e.Begin, e.End = offsets[0], offsets[1]
	each, known := storedBytes[e.Stored]
	want, fits := ByteSize(e.Shape, max(each, 1))
	switch {
	case !fits:
		return e, fmt.Errorf("shape %v of %s overflows", e.Shape, clip(e.Stored))
	case e.Begin > e.End:
		return e, fmt.Errorf("data_offsets [%d, %d] run backwards", e.Begin, e.End)
	case known && want != e.End-e.Begin:
		return e, fmt.Errorf("shape %v of %s is %d bytes, data_offsets [%d, %d] hold %d", e.Shape, e.Stored, want, e.Begin, e.End, e.End-e.Begin)
	case e.End > size:
		return e, fmt.Errorf("truncated: data_offsets [%d, %d] in a file with %d bytes of data", e.Begin, e.End, size)
	}
	return e, nil
}

func readShapeList(s *scanner) ([]int, error) {
	shape := []int{}
	err := s.list('[', ']', func() error {
		v, err := s.whole()
		switch {
		case err != nil:
			return err
		case len(shape) == maxRank:
			return s.errorf("more than %d dimensions", maxRank)
		case v > math.MaxInt:
			return s.errorf("dimension %d does not fit this machine", v)
		}
		shape = append(shape, int(v))
		return nil
	})
	return shape, err
}

// ByteSize multiplies a shape out, and reports whether the product fits.
func ByteSize(shape []int, each int64) (int64, bool) {
	total := uint64(each)
	for _, d := range shape {
		hi, lo := bits.Mul64(total, uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		total = lo
	}
	return int64(total), true
}

// checkLayout checks that the tensors tile the data section.
func checkLayout(entries []Entry, size int64) error {
	order := slices.Clone(entries)
	slices.SortFunc(order, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End)) })
	at, before := int64(0), "the header"
	for _, e := range order {
		switch {
		case e.Begin < at:
			return inTensor(e.Name, "data_offsets [%d, %d] overlap those of %q", e.Begin, e.End, clip(before))
		case e.Begin > at:
			return inTensor(e.Name, "data_offsets [%d, %d] leave a hole of %d bytes after %q", e.Begin, e.End, e.Begin-at, clip(before))
		}
		at, before = e.End, e.Name
	}
	if at != size {
		return malformed("%d bytes after the last tensor belong to none", size-at)
	}
	return nil
}

func malformed(format string, args ...any) error {
	return &Error{Detail: fmt.Sprintf(format, args...)}
}

func inTensor(name, format string, args ...any) error {
	return &Error{Tensor: name, Detail: fmt.Sprintf(format, args...)}
}

// clip keeps a hostile file's names from flooding a log line.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
