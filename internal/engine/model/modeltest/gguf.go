package modeltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
)

// GGUF builds a file of metadata and tensors. It checks nothing, so that tests can make invalid
// files too.
type GGUF struct {
	Version   uint32 // 0: 3
	Alignment int    // of the tensors; 0: 32. Write general.alignment with Set

	// Fields that tests may damage:
	Table []Entry // of the tensors
	Meta  []Key
	Data  []byte
}

// Key is one metadata key, with the bytes of its kind and value.
type Key struct {
	Name  string
	Value []byte
}

// Entry is an entry of the tensor table.
type Entry struct {
	Name   string
	Type   gguf.Type
	Shape  []int // outermost first
	Offset uint64
}

// Set appends a metadata key with a uint32, int32, float32, uint64, bool,
// string, []string, []int32 or []float32.
func (g *GGUF) Set(key string, v any) {
	g.Meta = append(g.Meta, Key{key, appendValue(nil, v)})
}

// Unset removes a metadata key.
func (g *GGUF) Unset(key string) {
	g.Meta = slices.DeleteFunc(g.Meta, func(k Key) bool { return k.Name == key })
}

// Add appends a tensor of shape (rows, columns) and its blocks.
func (g *GGUF) Add(name string, typ gguf.Type, shape []int, data []byte) {
	align := max(g.Alignment, 32)
	if g.Alignment != 0 {
		align = g.Alignment
	}
	for len(g.Data)%align != 0 {
		g.Data = append(g.Data, 0)
	}
	g.Table = append(g.Table, Entry{name, typ, shape, uint64(len(g.Data))})
	g.Data = append(g.Data, data...)
}

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
	out = le.AppendUint64(le.AppendUint64(out, uint64(len(g.Table))), uint64(len(g.Meta)))
	for _, k := range g.Meta {
		out = append(appendString(out, k.Name), k.Value...)
	}
	for _, t := range g.Table {
		out = le.AppendUint32(appendString(out, t.Name), uint32(len(t.Shape)))
		for i := range t.Shape {
			out = le.AppendUint64(out, uint64(t.Shape[len(t.Shape)-1-i]))
		}
		out = le.AppendUint64(le.AppendUint32(out, uint32(t.Type)), t.Offset)
	}
	for len(out)%align != 0 {
		out = append(out, 0)
	}
	return append(out, g.Data...)
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
	case []bool:
		b = array(gguf.Bool, len(v))
		for _, on := range v {
			n := byte(0)
			if on {
				n = 1
			}
			b = append(b, n)
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
