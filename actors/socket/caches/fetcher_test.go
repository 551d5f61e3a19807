package caches

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Another rank may ask for the last block of an answer before this socket has the order that commits it. It gets no reply
// then, and asks again. A block that the sequence does not have is refused at once.
func TestRowsBeforeTheCommit(t *testing.T) {
	x := newSavingSocket(t, 1<<28)
	own := x.e.Seqs[7].Cache
	g := own.Geometry()
	x.e.Form = tier.Form{HeadBytes: g.SegmentBlock(0, 0).Bytes(g)}
	last := savedTokens / tensor.BlockSlots
	x.on(func() {
		if err := own.Reserve(savedTokens + tensor.BlockSlots); err != nil {
			t.Error(err)
		}
	})
	asks := func(block int, wantRows, wantSoon bool) {
		t.Helper()
		rows, soon := x.e.fetcher.ownedRows(&Link{epoch: x.e}, rowsAt{seq: 7, block: block, heads: tensor.Span{Lo: 0, Hi: 1}})
		if (rows != nil) != wantRows || soon != wantSoon {
			t.Errorf("block %d: %d bytes, soon %v", block, len(rows), soon)
		}
	}
	asks(last-1, true, false)
	asks(last, false, true)
	asks(last+1, false, false)
	x.on(func() { own.Commit(tensor.BlockSlots) })
	asks(last, true, false)
	asks(last+1, false, false)
}
