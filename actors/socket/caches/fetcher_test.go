package caches

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// FuzzPost checks that a post is parsed to the values that were written, or rejected.
func FuzzPost(f *testing.F) {
	w := rowsAt{seq: 1 << 40, block: 3, offset: 5}
	w.heads.Lo, w.heads.Hi = 1, 4
	f.Add(putAsk(&w))
	f.Add(putRows(&w, []byte{1, 2, 3}))
	f.Add(bytes.Repeat([]byte{0xff}, postBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, rows, ask, ok := parsePost(b)
		if !ok {
			return
		}
		if w.block < 0 || w.heads.Lo < 0 || w.heads.Hi < 0 || w.offset < 0 || len(rows) > pieceBytes {
			t.Fatalf("%x is parsed as %+v, %d bytes of rows", b, w, len(rows))
		}
		again := putRows(&w, rows)
		if ask {
			again = putAsk(&w)
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x is parsed as %+v, which is encoded as %x", b, w, again)
		}
	})
}

// TestWire records the requests and replies for blocks.
func TestWire(t *testing.T) {
	post := &rowsAt{seq: 0x0102030405060708, block: 0x11, heads: tensor.Span{Lo: 0x12, Hi: 0x13}, offset: 0x14}
	wiretest.Check(t, wiretest.Form{Name: "posts", Text: fmt.Sprintf("%x\n%x", putAsk(post), putRows(post, []byte("rows")))})
}
