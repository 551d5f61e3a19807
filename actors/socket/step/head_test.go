package step

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/topology"
)

// TestBestOfAllRanks checks that the largest logit wins, and the lowest token on a tie. NaN must
// never win, and a token outside of its sender's range must fail the step.
func TestBestOfAllRanks(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	const none, fails = -1, -2
	rows := []topology.Range{{Lo: 0, Hi: 2}, {Lo: 2, Hi: 4}, {Lo: 4, Hi: 4}}
	b := &layer.Batch{}
	for _, r := range rows {
		b.Place.Slices = append(b.Place.Slices, topology.Slice{Vocab: r})
	}
	for _, c := range []struct {
		rank  int // rank that computes the result: 0 or 1; the other is the peer
		peer  float32
		token uint32
		own   [2]float32
		best  int
		want  int32
	}{
		{1, 1, 1, [2]float32{0, 2}, 1, 3},
		{1, 2, 1, [2]float32{0, 2}, 1, 1},
		{0, 2, 3, [2]float32{0, 2}, 1, 1},
		{0, 3, 3, [2]float32{0, 2}, 1, 3},
		{1, nan, 0, [2]float32{-5, -6}, 0, 2},
		{1, -7, 0, [2]float32{nan, nan}, 0, 0},
		{1, nan, 0, [2]float32{nan, nan}, 0, none},
		{1, -inf, 0, [2]float32{-inf, -inf}, 0, none},
		{1, inf, 1, [2]float32{inf, 0}, 0, 1},
		{1, 1, 2, [2]float32{0, 2}, 1, fails},
		{1, 1, math.MaxUint32, [2]float32{0, 2}, 1, fails},
		{0, 1, 1, [2]float32{0, 2}, 1, fails},
		{0, 1, 4, [2]float32{0, 2}, 1, fails},
	} {
		b.Rank = c.rank
		h := head{rows: []layer.LogitRow{{Best: c.best, Logit: c.own[c.best]}}, rankBuffers: rankBuffers{recv: make([][]byte, len(rows))}}
		h.recv[1-c.rank] = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(c.peer)), c.token)
		r := h.best(b, 0, make([]int, len(rows)))
		got := r.Token
		switch {
		case errors.Is(r.Err, sampler.ErrNoCandidate):
			got = none
		case r.Err != nil:
			got = fails
		case got < 0:
			t.Errorf("%+v: token %d without an error", c, got)
		}
		if got != c.want {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}
