package modeltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/gguf"
)

// GGUF builds a file of metadata and tensors. It checks nothing, so that tests
// can make broken files too.
type GGUF struct {
	Version   uint32 // 0: 3
	Alignment int    // of the tensors; 0: 32. Write general.alignment with Set

	Table []Entry // of the tensors; for damaging
	meta  []ggufKey
	data  []byte
}

type ggufKey struct {
	name  string
	value []byte
}

// Entry is a line of the table of tensors.
type Entry struct {
	Name   string
	Type   gguf.Type
	Shape  []int // outermost first
	Offset uint64
}

// Keys lists the metadata in order.
func (g *GGUF) Keys() []string {
	var keys []string
	for _, k := range g.meta {
		keys = append(keys, k.name)
	}
	return keys
}

// Cut takes the last n bytes of the data away.
func (g *GGUF) Cut(n int) {
	left := max(0, len(g.data)-n)
	g.data = g.data[:left:left] // what is added does not write into a clone's
}

// Clone copies all but the data, which both share.
func (g *GGUF) Clone() *GGUF {
	c := *g
	c.meta, c.Table = slices.Clone(g.meta), slices.Clone(g.Table)
	for i := range c.Table {
		c.Table[i].Shape = slices.Clone(c.Table[i].Shape)
	}
	return &c
}

// Header is the file up to its data, which has size bytes.
func (g *GGUF) Header() (header []byte, size int) {
	all := g.Bytes()
	return all[:len(all)-len(g.data)], len(g.data)
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
	g.Table = append(g.Table, Entry{name, typ, shape, uint64(len(g.data))})
	g.data = append(g.data, data...)
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
	out = le.AppendUint64(le.AppendUint64(out, uint64(len(g.Table))), uint64(len(g.meta)))
	for _, k := range g.meta {
		out = append(appendString(out, k.name), k.value...)
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
		for j := len(g.Table) * i / n; j < len(g.Table)*(i+1)/n; j++ {
			t, end := g.Table[j], uint64(len(g.data))
			if j+1 < len(g.Table) {
				end = g.Table[j+1].Offset
			}
			p.Add(t.Name, t.Type, t.Shape, g.data[t.Offset:end])
		}
		parts[i] = p
	}
	return parts
}
