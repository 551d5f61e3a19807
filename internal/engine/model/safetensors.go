package model

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Limits of a safetensors header. The first is the format's own; the others are several times the
// largest published checkpoints.
const (
	maxHeaderBytes = 100_000_000
	maxTensors     = 1 << 18
	maxNameBytes   = 512
	maxRank        = 8
)

// storedBytes is the element size of each type whose shape is compared with its bytes. Only F32,
// BF16, F16 and F8_E4M3 can be weights. Tensors that are not read may have any type.
var storedBytes = map[string]int64{
	"F32": 4, "BF16": 2, "F16": 2,
	"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2,
	"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}

type entry struct {
	name       string
	stored     string // element type as the header names it
	shape      []int
	begin, end int64 // bytes [begin, end) of the data section
}

// shard is one mapped safetensors file.
type shard struct {
	*modelfile.Mapping
	data    []byte // after the header
	entries []entry
}

// openShard maps a safetensors file and checks its header against its size.
func openShard(path string) (_ *shard, err error) {
	defer func() {
		var e *Error
		if errors.As(err, &e) && e.File == "" {
			e.File = path
		}
	}()
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	var m *modelfile.Mapping // owns f
	defer func() {
		switch {
		case err != nil && m != nil:
			err = errors.Join(err, m.Close())
		case err != nil:
			err = errors.Join(err, f.Close())
		}
	}()
	var head [8]byte
	if size < int64(len(head)) {
		return nil, malformed("%d bytes are no safetensors file: truncated before the header's length", size)
	}
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, &Error{File: path, Kind: ErrFormat, Detail: "reading the header's length: " + err.Error()}
	}
	n := binary.LittleEndian.Uint64(head[:])
	switch rest := uint64(size) - 8; {
	case string(head[:]) == "version ":
		return nil, malformed("looks like a Git LFS pointer instead of the weights (fetch them with git lfs pull)")
	case n > maxHeaderBytes:
		return nil, malformed("header of %d bytes, more than %d: not a safetensors file?", n, maxHeaderBytes)
	case n > rest:
		return nil, malformed("truncated: header of %d bytes in a file of %d", n, size)
	}
	m, err = modelfile.Map(f, size)
	if errors.Is(err, modelfile.ErrUnmappable) {
		return nil, &Error{Kind: ErrUnsupported, Detail: fmt.Sprintf("%d bytes cannot be mapped on this machine", size)}
	} else if err != nil {
		return nil, fmt.Errorf("model: %s: mapping: %w", path, err)
	}
	s := &shard{Mapping: m, data: m.Data[8+n:]}
	if fault := mmap.Guard(func() { s.entries, err = parseHeader(m.Data[8:8+n], int64(len(s.data))) }); fault != nil {
		err = fault
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openRegular opens a regular file for reading and returns its size.
func openRegular(path string) (*os.File, int64, error) {
	f, st, err := modelfile.Open(path)
	if err != nil {
		return nil, 0, unreadable(path, err)
	}
	return f, st.Size(), nil
}

// readSmall reads a whole regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	data, err := modelfile.Read(path, limit)
	if err != nil {
		return nil, unreadable(path, err)
	}
	return data, nil
}

// unreadable converts an error of modelfile to one of this package.
func unreadable(path string, err error) error {
	if errors.Is(err, modelfile.ErrNotRegular) || errors.Is(err, modelfile.ErrTooLarge) {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return &Error{File: path, Kind: ErrFormat, Detail: err.Error()}
	}
	return notThere(path, err)
}

func notThere(path string, err error, more ...string) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return &Error{File: path, Kind: ErrMissing, Detail: err.Error() + strings.Join(more, "")}
}

// parseHeader parses the JSON of a header and checks every tensor against size, the bytes of the
// data section. Shape times element size, if the type is known, must equal the tensor's range. All
// ranges together must tile the section.
func parseHeader(header []byte, size int64) ([]entry, error) {
	s := &scanner{data: header}
	var entries []entry
	seen := map[string]bool{}
	err := s.object(maxNameBytes, func(name string) error {
		if seen[name] {
			return inTensor(name, "named twice in the header")
		}
		seen[name] = true
		if name == "__metadata__" {
			return s.object(maxNameBytes, func(string) error { return s.skipText() })
		}
		if len(entries) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
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

func readEntry(s *scanner, name string, size int64) (entry, error) {
	e := entry{name: name}
	var offsets []int64
	seen := map[string]bool{}
	err := s.object(maxNameBytes, func(key string) (err error) {
		if seen[key] {
			return s.errorf("key %q given twice", clip(key))
		}
		seen[key] = true
		switch key {
		case "dtype":
			e.stored, err = s.text(maxNameBytes)
		case "shape":
			e.shape, err = readShapeList(s)
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
	e.begin, e.end = offsets[0], offsets[1]
	each, known := storedBytes[e.stored]
	want, fits := byteSize(e.shape, max(each, 1))
	switch {
	case !fits:
		return e, fmt.Errorf("shape %v of %s overflows", e.shape, clip(e.stored))
	case e.begin > e.end:
		return e, fmt.Errorf("data_offsets [%d, %d] run backwards", e.begin, e.end)
	case known && want != e.end-e.begin:
		return e, fmt.Errorf("shape %v of %s is %d bytes, data_offsets [%d, %d] hold %d", e.shape, e.stored, want, e.begin, e.end, e.end-e.begin)
	case e.end > size:
		return e, fmt.Errorf("truncated: data_offsets [%d, %d] in a file with %d bytes of data", e.begin, e.end, size)
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

// byteSize multiplies a shape out, and reports whether the product fits.
func byteSize(shape []int, each int64) (int64, bool) {
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
func checkLayout(entries []entry, size int64) error {
	order := slices.Clone(entries)
	slices.SortFunc(order, func(a, b entry) int { return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end)) })
	at, before := int64(0), "the header"
	for _, e := range order {
		switch {
		case e.begin < at:
			return inTensor(e.name, "data_offsets [%d, %d] overlap those of %q", e.begin, e.end, clip(before))
		case e.begin > at:
			return inTensor(e.name, "data_offsets [%d, %d] leave a hole of %d bytes after %q", e.begin, e.end, e.begin-at, clip(before))
		}
		at, before = e.end, e.name
	}
	if at != size {
		return malformed("%d bytes after the last tensor belong to none", size-at)
	}
	return nil
}

func malformed(format string, args ...any) error {
	return &Error{Kind: ErrFormat, Detail: fmt.Sprintf(format, args...)}
}

func inTensor(name, format string, args ...any) error {
	return &Error{Tensor: name, Kind: ErrFormat, Detail: fmt.Sprintf(format, args...)}
}
