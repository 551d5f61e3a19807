package tensor

import (
	"bytes"
	"fmt"
	"testing"
)

// A page that is saved and loaded elsewhere has the bits of its slots, and no other slot changes.
func TestSavePage(t *testing.T) {
	for _, l := range pageLayouts {
		for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
			blocks, _ := pagesOf(l, 2*BlockSlots, 16, 7)
			src, dst, before := blocks[0], blocks[1], bytes.Clone(blocks[1])
			for first := 0; first < BlockSlots; first += 2 * n {
				page := make([]byte, l.PageBytes(n))
				l.SavePage(page, src, first, n)
				l.LoadPage(dst, first, n, page)
			}
			for slot := range BlockSlots {
				want, got, from := make([]byte, l.RowBytes()), make([]byte, l.RowBytes()), src
				if slot/n%2 == 1 {
					from = before
				}
				l.ExportRow(want, from, slot)
				if l.ExportRow(got, dst, slot); !bytes.Equal(got, want) {
					t.Fatalf("%s: slot %d differs", fmt.Sprintf("%v latent %v, pages of %d", l.Type, l.Latent, n), slot)
				}
			}
		}
	}
}
