package bench

import (
	"encoding/json"
	"testing"
)

// TestBatchRatios: each ratio compares its own quantity, whichever the first policy has.
func TestBatchRatios(t *testing.T) {
	for _, c := range []struct {
		first, second BatchRow
		want          BatchRow
	}{
		{BatchRow{Sequences: 2, DecodePerS: 10, MedianPerS: 8, TokensPerS: 5}, BatchRow{Sequences: 6, DecodePerS: 30, MedianPerS: 16, TokensPerS: 20},
			BatchRow{OverFull: 3, DecodeOver: 3, MedianOver: 2, TokensOver: 4}},
		// answers that are too short for a decode rate
		{BatchRow{Sequences: 2, TokensPerS: 5}, BatchRow{Sequences: 6, TokensPerS: 20}, BatchRow{OverFull: 3, TokensOver: 4}},
		{BatchRow{DecodePerS: 10}, BatchRow{}, BatchRow{}},
	} {
		var b Batch
		b.add(&c.first)
		b.add(&c.second)
		if got := b.Rows[1]; got.OverFull != c.want.OverFull || got.DecodeOver != c.want.DecodeOver || got.MedianOver != c.want.MedianOver ||
			got.TokensOver != c.want.TokensOver {
			t.Errorf("%+v and %+v: %+v", c.first, c.second, got)
		}
		if _, err := json.Marshal(b); err != nil {
			t.Error(err)
		}
	}
}
