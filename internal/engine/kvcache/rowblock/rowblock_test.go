package rowblock

import (
	"bytes"
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// toyRows is a cache whose layers differ: layer 0 has rows of 4 bytes in slots, layer 1 rows of 6
// bytes in blocks of four slots, layer 2 a recurrent state of 10 bytes. It keeps the bodies that
// were written.
type toyRows struct{ body []byte }

func (toyRows) RowShape(layer, _ int, plane Plane) Shape {
	switch {
	case layer == 0 && plane == Rows:
		return Shape{Bytes: 4, Slots: 1}
	case layer == 1 && plane == Blocks:
		return Shape{Bytes: 6, Slots: 4}
	case layer == 2 && plane == State:
		return Shape{Bytes: 10}
	}
	return Shape{}
}

func (r toyRows) ReadRows(dst []byte, b Block) ([]byte, error) {
	return b.ReadEach(dst, r, func(dst []byte, at Part) error {
		for i := range dst {
			dst[i] = byte(100*at.Layer + 10*at.Head + i)
		}
		return nil
	})
}

func (r *toyRows) WriteRows(b Block, body []byte) error {
	return b.WriteEach(body, r, func(_ Part, src []byte) error {
		r.body = append(r.body, src...)
		return nil
	})
}

var toyBlock = Block{Layers: tensor.Span{Lo: 0, Hi: 3}, Heads: tensor.Span{Lo: 2, Hi: 4},
	Slots: tensor.Span{Lo: 1, Hi: 6}, Planes: Rows | Blocks | State}

// TestRowBlock: layers may differ in their planes and in the size of a row, and a state is one row.
func TestRowBlock(t *testing.T) {
	var to toyRows
	in, err := toyBlock.Append([]byte("before"), toyRows{})
	if err != nil || len(in) != len("before")+toyBlock.Bytes(to) || toyBlock.Bytes(to) != HeaderBytes+2*(5*4+2*6+10) {
		t.Fatalf("%d bytes, want %d (%v)", len(in), toyBlock.Bytes(to), err)
	}
	in = append(in[len("before"):], "after"...)
	rest, err := toyBlock.Store(in, &to)
	if err != nil || string(rest) != "after" || !bytes.Equal(to.body, in[HeaderBytes:len(in)-len(rest)]) {
		t.Fatalf("%d bytes stored, rest %q: %v", len(to.body), rest, err)
	}
	// Only the block that the receiver expects is stored, and only whole.
	for name, bad := range map[string][]byte{"short header": in[:HeaderBytes-1],
		"short body": in[:toyBlock.Bytes(to)-1], "other block": append([]byte{1}, in[1:]...)} {
		var to toyRows
		if _, err := toyBlock.Store(bad, &to); !errors.Is(err, Err) || to.body != nil {
			t.Errorf("%s: %v, %d bytes stored", name, err, len(to.body))
		}
	}
}

// FuzzRowBlock: a header that is accepted has bounded, ordered numbers, and equals the one that Append
// writes. Only the expected block reaches the cache.
func FuzzRowBlock(f *testing.F) {
	seed, err := toyBlock.Append(nil, toyRows{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:HeaderBytes])
	f.Add(append(bytes.Repeat([]byte{255}, HeaderBytes), 0))
	f.Fuzz(func(t *testing.T, in []byte) {
		var to toyRows
		rest, stored := toyBlock.Store(in, &to)
		b, err := Parse(in)
		if (stored == nil) != (err == nil && b == toyBlock && len(in) >= toyBlock.Bytes(to)) || stored != nil && to.body != nil {
			t.Fatalf("%v: parsed %v, stored %v", b, err, stored)
		}
		if stored == nil && len(rest)+toyBlock.Bytes(to) != len(in) {
			t.Fatalf("%d of %d bytes are left", len(rest), len(in))
		}
		if err != nil {
			return
		}
		if b.Layers.Len() < 0 || b.Heads.Len() < 0 || b.Slots.Len() < 0 || b.Slots.Hi > maxSpan {
			t.Fatalf("accepted %v", b)
		}
		if b.Layers.Len()*b.Heads.Len() > 1<<10 || b.Slots.Len() > 1<<10 {
			return
		}
		if again, err := b.Append(nil, toyRows{}); err != nil || !bytes.Equal(again[:HeaderBytes], in[:HeaderBytes]) {
			t.Fatalf("%v is written with another header: %v", b, err)
		}
	})
}
