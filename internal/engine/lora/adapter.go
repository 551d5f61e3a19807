package lora

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// ID identifies an adapter by every byte of its two files. The zero ID means no adapter.
type ID [sha256.Size]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText and UnmarshalText are the text form, in JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

func (id *ID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(id) {
		return fmt.Errorf("lora: %.80q is not the ID of an adapter", text)
	}
	*id = ID(b)
	return nil
}

// Bytes returns the wire form; that of no adapter is empty.
func (id ID) Bytes() []byte {
	if id == (ID{}) {
		return nil
	}
	return id[:]
}

// IDOf reads the wire form.
func IDOf(b []byte) (id ID, err error) {
	if len(b) != 0 && len(b) != len(id) {
		return id, fmt.Errorf("lora: the ID of an adapter has %d bytes, not %d", len(b), len(id))
	}
	copy(id[:], b)
	return id, nil
}

// Pair has the factors of one matrix: A (rank, columns of W) and B (rows of W, rank).
type Pair struct {
	Module string // name of the matrix in the base, such as model.layers.0.self_attn.q_proj
	A, B   checkpoint.Tensor
	Scale  float32
	scale  float64 // before it was rounded
}

// Rank returns the number of rows of A and of columns of B.
func (p *Pair) Rank() int { return p.A.Rows() }

// Adapter is an open adapter. Its factors are mapped: they may be read until Close, by goroutines
// that use mmap.Guard.
type Adapter struct {
	Dir   string
	ID    ID
	Base  string // base_model_name_or_path: a folder or a model name
	Pairs []Pair // in the order of their modules
	Size  int64  // bytes of both files
	file  *weights
}

// MaxSize is the maximum size of an adapter's weights.
const MaxSize = 16 << 30

// IsFolder reports whether a folder holds an adapter and no model.
func IsFolder(dir string) bool {
	_, adapter := os.Stat(filepath.Join(dir, configFile))
	_, whole := os.Stat(filepath.Join(dir, "config.json"))
	return adapter == nil && whole != nil
}

// BaseOf returns the base that the adapter in a folder names: a folder or a model name.
func BaseOf(dir string) (string, error) {
	c, _, err := readConfig(dir)
	if err != nil {
		return "", err
	}
	return c.base, nil
}

// Open opens an adapter, checks all shapes, and reads every factor once: it refuses values that are
// not finite.
func Open(dir string) (_ *Adapter, err error) {
	c, text, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	w, err := openWeights(filepath.Join(dir, weightsFile))
	if err != nil {
		return nil, err
	}
	a := &Adapter{Dir: dir, Base: c.base, Size: int64(len(text)) + int64(len(w.Data)), file: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if a.Pairs, err = w.pairs(c); err != nil {
		return nil, err
	}
	fault := mmap.Guard(func() {
		if err = checkFinite(w.Path, a.Pairs); err == nil {
			a.ID = identity(text, w.Data)
		}
	})
	return a, errors.Join(err, fault)
}

// Unchanged reports whether the file of the factors is the one that Open read.
func (a *Adapter) Unchanged() bool {
	now, err := a.file.Stamp()
	return err == nil && now == a.file.Opened
}

// Close unmaps the factors.
func (a *Adapter) Close() error { return a.file.Close() }

func identity(config, weights []byte) (id ID) {
	h := sha256.New()
	h.Write([]byte("shoal lora 1\x00"))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(config))))
	h.Write(config)
	h.Write(weights)
	h.Sum(id[:0])
	return id
}

// weights is a mapped safetensors file.
type weights struct {
	*modelfile.Mapping
	entries []safetensors.Entry
	tensors []byte // after the header
}

func openWeights(path string) (_ *weights, err error) {
	f, st, err := modelfile.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	format := func(detail string, args ...any) error {
		return &model.Error{File: path, Kind: model.ErrFormat, Detail: fmt.Sprintf(detail, args...)}
	}
	var head [8]byte
	size := st.Size()
	n := uint64(0)
	if _, err = io.ReadFull(f, head[:]); err == nil {
		n = binary.LittleEndian.Uint64(head[:])
	}
	switch {
	case err != nil || n > uint64(size)-8 || n > safetensors.MaxHeaderBytes:
		err = format("is not a safetensors file, or truncated")
	case size > MaxSize:
		err = format("has %d bytes, at most %d are possible", size, int64(MaxSize))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	m, err := modelfile.Map(f, size)
	if err != nil {
		return nil, errors.Join(format("cannot be mapped: %v", err), f.Close())
	}
	w := &weights{Mapping: m, tensors: m.Data[8+n:]}
	if fault := mmap.Guard(func() { w.entries, err = safetensors.Parse(m.Data[8:8+n], size-8-int64(n)) }); fault != nil {
		err = fault
	}
	if e, ok := errors.AsType[*safetensors.Error](err); ok {
		err = &model.Error{File: path, Tensor: e.Tensor, Kind: model.ErrFormat, Detail: e.Detail}
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return w, nil
}

var weightTypes = map[string]tensor.DType{"F32": tensor.F32, "BF16": tensor.BF16, "F16": tensor.F16}

// factorOf returns the module that a tensor of an adapter belongs to, and whether it is its A.
func factorOf(name string) (module string, isA, ok bool) {
	name, ok = strings.CutPrefix(name, "base_model.model.")
	if !ok {
		return "", false, false
	}
	if module, ok = strings.CutSuffix(name, ".lora_A.weight"); ok {
		return module, true, true
	}
	module, ok = strings.CutSuffix(name, ".lora_B.weight")
	return module, false, ok
}

// pairs finds both factors of every matrix and checks their shapes.
func (w *weights) pairs(c *config) ([]Pair, error) {
	found := map[string]*Pair{}
	for _, e := range w.entries {
		refuse := func(kind error, format string, args ...any) error {
			return &model.Error{File: w.Path, Tensor: e.Name, Kind: kind, Detail: fmt.Sprintf(format, args...)}
		}
		module, isA, ok := factorOf(e.Name)
		switch {
		case strings.Contains(e.Name, "lora_magnitude_vector"):
			return nil, refuse(model.ErrUnsupported, "belongs to DoRA, which "+mergeFirst)
		case strings.Contains(e.Name, "lora_embedding"):
			return nil, refuse(model.ErrUnsupported, "adapts the embedding, which "+mergeFirst)
		case !ok:
			return nil, refuse(model.ErrUnsupported, "is not a factor of a matrix (base_model.model.NAME.lora_A.weight or lora_B.weight)")
		}
		dt, known := weightTypes[e.Stored]
		if !known || len(e.Shape) != 2 {
			return nil, refuse(model.ErrUnsupported, "is %.20s of shape %v; want a matrix of F32, BF16 or F16", e.Stored, e.Shape)
		}
		p := found[module]
		if p == nil {
			p = &Pair{Module: module}
			found[module] = p
		}
		t, at := checkpoint.Tensor{Name: e.Name, DType: dt, Shape: e.Shape, Data: w.tensors[e.Begin:e.End:e.End]}, 1
		if isA {
			p.A, at = t, 0
		} else {
			p.B = t
		}
		if rank, _ := c.of(module); e.Shape[at] != rank {
			return nil, refuse(model.ErrMismatch, "has shape %v, but the adapter's rank is %d", e.Shape, rank)
		}
	}
	out := make([]Pair, 0, len(found))
	for _, module := range slices.Sorted(maps.Keys(found)) {
		p := found[module]
		if p.A.Data == nil || p.B.Data == nil {
			return nil, &model.Error{File: w.Path, Tensor: module, Kind: model.ErrMissing, Detail: "has one factor of two"}
		}
		_, p.scale = c.of(module)
		p.Scale = float32(p.scale)
		out = append(out, *p)
	}
	if len(out) == 0 {
		return nil, &model.Error{File: w.Path, Kind: model.ErrMissing, Detail: "holds no factors"}
	}
	return out, nil
}

// checkFinite reads every factor.
func checkFinite(path string, pairs []Pair) error {
	var row []float32
	for i := range pairs {
		for _, t := range [...]checkpoint.Tensor{pairs[i].A, pairs[i].B} {
			row = slices.Grow(row[:0], t.Cols())[:t.Cols()]
			for r := range t.Rows() {
				t.Row(row, r, 0, len(row))
				for _, v := range row {
					if v-v != 0 {
						return &model.Error{File: path, Tensor: t.Name, Kind: model.ErrNotFinite,
							Detail: fmt.Sprintf("row %d has a value that is not finite", r)}
					}
				}
			}
		}
		if s := float64(pairs[i].Scale); math.IsInf(s, 0) || s == 0 {
			return &model.Error{File: path, Tensor: pairs[i].Module, Kind: model.ErrOutOfRange, Detail: "has a scale that float32 cannot hold"}
		}
	}
	return nil
}
