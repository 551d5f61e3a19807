package gguf

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// File is a parsed file. Its methods may be called concurrently until Close.
type File struct {
	Path      string
	Version   uint32
	Alignment int
	Tensors   []Tensor // in the order of the file's table

	meta    map[string]Value
	keys    []string           // in the order of the file
	mapping *modelfile.Mapping // nil: parsed in memory
}

// Tensor is a tensor of a file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int  // outermost dimension first: rows, columns (the file has the reverse order)
	Data  []byte // its blocks, row by row, in the mapping; nil after ParseHead

	Offset, Bytes int64 // position of Data in the file, and its length
}

// Parse reads a whole file in memory. The result points into data. Errors are *Error without a
// path.
func Parse(data []byte) (*File, error) {
	f, err := ParseHead(data, int64(len(data)))
	if err != nil {
		return nil, err
	}
	for i, t := range f.Tensors {
		f.Tensors[i].Data = data[t.Offset : t.Offset+t.Bytes : t.Offset+t.Bytes]
	}
	return f, nil
}

// ParseHead reads the header of a file of size bytes that begins with head. The tensors have no
// Data. It fails if head ends within the header.
func ParseHead(head []byte, size int64) (*File, error) {
	f, err := attempt.At(func() *File { return parse(head, uint64(size)) })
	var e *Error
	if err == nil || errors.As(err, &e) {
		return f, err
	}
	return nil, &Error{Kind: ErrFormat, Detail: err.Error()}
}

func parse(data []byte, size uint64) *File {
	r := &reader{data: data[:min(len(data), maxHeaderBytes)], clipped: len(data) > maxHeaderBytes}
	if len(data) < 4 {
		panic(wrong("%d bytes are not a GGUF file", len(data)))
	}
	bigEndian := attempt.Failure{Err: &Error{Kind: ErrUnsupported, Detail: "big endian; convert the file on a little endian machine"}}
	switch magic := r.take(4); string(magic) {
	case "GGUF":
	case "FUGG":
		panic(bigEndian)
	case "vers":
		panic(wrong("looks like a Git LFS pointer instead of the model (fetch it with git lfs pull)"))
	default:
		panic(wrong("begins with %q instead of \"GGUF\"", magic))
	}
	f := &File{meta: map[string]Value{}, Version: r.u32()}
	if f.Version < 2 || f.Version > 3 {
		if f.Version > 0xffff {
			panic(bigEndian)
		}
		panic(attempt.Failure{Err: &Error{Kind: ErrUnsupported, Detail: fmt.Sprintf("version %d; supported: 2 and 3", f.Version)}})
	}
	tensors, keys := r.u64(), r.u64()
	switch {
	case tensors > maxTensors:
		panic(wrong("%d tensors, more than %d", tensors, maxTensors))
	case keys > maxKeys:
		panic(wrong("%d metadata keys, more than %d", keys, maxKeys))
	}
	f.readMeta(r, int(keys))
	f.readAlignment()
	begins := f.readTable(r, int(tensors))
	start := align(uint64(r.at), uint64(f.Alignment))
	if start > size {
		if len(f.Tensors) > 0 {
			panic(wrong("%w: the data begins at byte %d of %d", errTruncated, start, size))
		}
		start = size
	}
	f.place(start, size-start, begins)
	return f
}

func (f *File) readMeta(r *reader, n int) {
	for i := range n {
		key, err := attempt.At(r.name)
		if err != nil {
			panic(wrong("metadata %d: %w", i, err))
		}
		if _, ok := f.meta[key]; ok {
			panic(attempt.Failure{Err: &Error{Key: key, Kind: ErrFormat, Detail: "given twice"}})
		}
		v, err := attempt.At(r.value)
		if err != nil {
			panic(attempt.Failure{Err: &Error{Key: key, Kind: ErrFormat, Detail: err.Error()}})
		}
		f.meta[key] = v
		f.keys = append(f.keys, key)
	}
}

// readAlignment reads general.alignment: a power of two, 32 by default.
func (f *File) readAlignment() {
	const key, most = "general.alignment", 1 << 16
	f.Alignment = 32
	if v, ok := f.meta[key]; ok {
		n, ok := v.Int()
		if !ok || n < 8 || n > most || n&(n-1) != 0 {
			panic(attempt.Failure{Err: &Error{Key: key, Kind: ErrFormat, Detail: fmt.Sprintf("%v is not a power of two in 8..%d", v, most)}})
		}
		f.Alignment = int(n)
	}
}

// readTable reads the tensor table and the tensors' offsets.
func (f *File) readTable(r *reader, n int) (begins []uint64) {
	seen := map[string]bool{}
	for i := range n {
		name, err := attempt.At(r.name)
		if err != nil {
			panic(wrong("tensor %d: %w", i, err))
		}
		if seen[name] {
			panic(attempt.Failure{Err: &Error{Tensor: name, Kind: ErrFormat, Detail: "named twice"}})
		}
		seen[name] = true
		t := Tensor{Name: name}
		begin, err := attempt.At(func() uint64 { return t.read(r) })
		if err != nil {
			panic(attempt.Failure{Err: inTensor(name, err)})
		}
		f.Tensors, begins = append(f.Tensors, t), append(begins, begin)
	}
	return begins
}

// read reads type and shape, and returns the offset of the data.
func (t *Tensor) read(r *reader) (begin uint64) {
	rank := r.u32()
	if rank < 1 || rank > maxRank {
		panic(wrong("%d dimensions, want 1 to %d", rank, maxRank))
	}
	for range rank {
		d := r.u64()
		if d < 1 || d > math.MaxInt32 {
			panic(wrong("dimension %d, want 1 to %d", d, math.MaxInt32))
		}
		t.Shape = append(t.Shape, int(d))
	}
	slices.Reverse(t.Shape)
	t.Type = Type(r.u32())
	begin = r.u64()
	if !t.Type.Known() {
		panic(attempt.Failure{Err: &Error{Kind: ErrUnsupported, Detail: fmt.Sprintf("is %v; supported: %s", t.Type, knownTypes())}})
	}
	return begin
}

// size returns the number of bytes of the data.
func (t *Tensor) size() (uint64, error) {
	cols := t.Shape[len(t.Shape)-1]
	if block := t.Type.Block(); cols%block != 0 {
		return 0, fmt.Errorf("rows of %d elements are not whole blocks of %d, as %v needs", cols, block, t.Type)
	}
	total := uint64(cols/t.Type.Block()) * uint64(t.Type.BlockBytes())
	for _, d := range t.Shape[:len(t.Shape)-1] {
		hi, lo := bits.Mul64(total, uint64(d))
		if hi != 0 || lo > math.MaxInt64/2 {
			return 0, fmt.Errorf("shape %v of %v overflows", t.Shape, t.Type)
		}
		total = lo
	}
	return total, nil
}

// place assigns every tensor its place in the data, which has size bytes from start on. In order of offset
// each must start at the first aligned byte after the one before, so that no byte belongs to two tensors.
func (f *File) place(start, size uint64, begins []uint64) {
	order := make([]int, len(begins))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case begins[a] < begins[b]:
			return -1
		case begins[a] > begins[b]:
			return 1
		}
		return 0
	})
	at := uint64(0)
	for _, i := range order {
		t, begin := &f.Tensors[i], begins[i]
		n, err := t.size()
		switch {
		case err != nil:
		case begin%uint64(f.Alignment) != 0:
			err = fmt.Errorf("begins at byte %d of the data, which is not a multiple of %d", begin, f.Alignment)
		case begin < at:
			err = fmt.Errorf("begins at byte %d of the data, within another tensor that ends at %d", begin, at)
		case begin > align(at, uint64(f.Alignment)):
			err = fmt.Errorf("begins at byte %d of the data; a hole after the tensor that ends at %d", begin, at)
		case begin > size || n > size-begin:
			err = fmt.Errorf("%w: %d bytes from byte %d of the data, which has %d", errTruncated, n, begin, size)
		}
		if err != nil {
			panic(attempt.Failure{Err: inTensor(t.Name, err)})
		}
		t.Offset, t.Bytes = int64(start+begin), int64(n)
		at = begin + n
	}
	if rest := size - at; rest >= uint64(f.Alignment) {
		panic(wrong("%d bytes after the last tensor belong to no tensor", rest))
	}
}

// align rounds n up to a multiple of a. n is far below 2^63.
func align(n, a uint64) uint64 { return (n + a - 1) / a * a }

func inTensor(name string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Tensor = name
		return e
	}
	return &Error{Tensor: name, Kind: ErrFormat, Detail: err.Error()}
}

func knownTypes() string {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(layouts)) {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}
