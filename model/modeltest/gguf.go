package modeltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"shoal/gguf"
)

// GGUF builds a file of metadata and tensors. It checks nothing, so that tests
// can make broken files too.
type GGUF struct {
	Version   uint32 // 0: 3
	Alignment int    // of the tensors; 0: 32. Write general.alignment with Set

	meta    []ggufKey
	tensors []ggufTensor
	data    []byte
}

type ggufKey struct {
	name  string
	value []byte
}

type ggufTensor struct {
	name   string
	typ    gguf.Type
	shape  []int
	offset uint64
}

// Set appends a metadata key with a uint32, int32, float32, uint64, bool,
// string, []string, []int32 or []float32.
func (g *GGUF) Set(key string, v any) {
	g.meta = append(g.meta, ggufKey{key, appendValue(nil, v)})
}

// Unset takes a key out again.
func (g *GGUF) Unset(key string) {
	g.meta = slices.DeleteFunc(g.meta, func(k ggufKey) bool { return k.name == key })
}

// Add appends a tensor of the shape (rows, columns) and its blocks.
func (g *GGUF) Add(name string, typ gguf.Type, shape []int, data []byte) {
	align := max(g.Alignment, 32)
	if g.Alignment != 0 {
		align = g.Alignment
	}
	for len(g.data)%align != 0 {
		g.data = append(g.data, 0)
	}
	g.tensors = append(g.tensors, ggufTensor{name, typ, shape, uint64(len(g.data))})
	g.data = append(g.data, data...)
}

// Bytes is the file.
func (g *GGUF) Bytes() []byte {
	le := binary.LittleEndian
	version, align := g.Version, g.Alignment
	if version == 0 {
		version = 3
	}
	if align == 0 {
		align = 32
	}
	out := le.AppendUint32([]byte("GGUF"), version)
	out = le.AppendUint64(le.AppendUint64(out, uint64(len(g.tensors))), uint64(len(g.meta)))
	for _, k := range g.meta {
		out = append(appendString(out, k.name), k.value...)
	}
	for _, t := range g.tensors {
		out = le.AppendUint32(appendString(out, t.name), uint32(len(t.shape)))
		for i := range t.shape {
			out = le.AppendUint64(out, uint64(t.shape[len(t.shape)-1-i]))
		}
		out = le.AppendUint64(le.AppendUint32(out, uint32(t.typ)), t.offset)
	}
	for len(out)%align != 0 {
		out = append(out, 0)
	}
	return append(out, g.data...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func appendValue(b []byte, v any) []byte {
	le := binary.LittleEndian
	kind := func(k gguf.Kind) []byte { return le.AppendUint32(b, uint32(k)) }
	array := func(k gguf.Kind, n int) []byte {
		return le.AppendUint64(le.AppendUint32(kind(gguf.Array), uint32(k)), uint64(n))
	}
	switch v := v.(type) {
	case uint32:
		return le.AppendUint32(kind(gguf.Uint32), v)
	case int:
		return le.AppendUint32(kind(gguf.Uint32), uint32(v))
	case int32:
		return le.AppendUint32(kind(gguf.Int32), uint32(v))
	case uint64:
		return le.AppendUint64(kind(gguf.Uint64), v)
	case float32:
		return le.AppendUint32(kind(gguf.Float32), math.Float32bits(v))
	case bool:
		b = kind(gguf.Bool)
		if v {
			return append(b, 1)
		}
		return append(b, 0)
	case string:
		return appendString(kind(gguf.String), v)
	case []string:
		b = array(gguf.String, len(v))
		for _, s := range v {
			b = appendString(b, s)
		}
		return b
	case []int32:
		b = array(gguf.Int32, len(v))
		for _, n := range v {
			b = le.AppendUint32(b, uint32(n))
		}
		return b
	case []float32:
		b = array(gguf.Float32, len(v))
		for _, n := range v {
			b = le.AppendUint32(b, math.Float32bits(n))
		}
		return b
	}
	panic(fmt.Sprintf("modeltest: no metadata of %T", v))
}

// Split deals the tensors to n files in runs, as llama-gguf-split does: the
// first has all metadata.
func (g *GGUF) Split(n int) []*GGUF {
	parts := make([]*GGUF, n)
	for i := range parts {
		p := &GGUF{Version: g.Version, Alignment: g.Alignment}
		if i == 0 {
			p.meta = slices.Clone(g.meta)
		}
		p.Set("split.no", i)
		p.Set("split.count", n)
		for j := len(g.tensors) * i / n; j < len(g.tensors)*(i+1)/n; j++ {
			t, end := g.tensors[j], uint64(len(g.data))
			if j+1 < len(g.tensors) {
				end = g.tensors[j+1].offset
			}
			p.Add(t.name, t.typ, t.shape, g.data[t.offset:end])
		}
		parts[i] = p
	}
	return parts
}
