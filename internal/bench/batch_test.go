package bench

import (
	"encoding/json"
	"testing"
	"time"
)

// TestBatchRatios: each ratio compares its own quantity, whichever the first policy has.
func TestBatchRatios(t *testing.T) {
	for _, c := range []struct {
		first, second BatchRow
		want          BatchRow
	}{
		{BatchRow{Sequences: 2, DecodePerS: 10, MedianPerS: 8, TokensPerS: 5},
			BatchRow{Sequences: 6, DecodePerS: 30, MedianPerS: 16, TokensPerS: 20},
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

// TestMedian: between two middle values it is their mean.
func TestMedian(t *testing.T) {
	if a, b := medianOf([]time.Duration{30, 10}), medianOf([]time.Duration{30, 10, 11}); a != 20 || b != 11 {
		t.Errorf("%d and %d, want 20 and 11", a, b)
	}
	if x := medianOf([]float64{4, 1, 3, 100}); x != 3.5 {
		t.Errorf("%v, want 3.5", x)
	}
	c := make(chan time.Duration, 4) // several goroutines write to it
	for _, d := range []time.Duration{9 * time.Second, time.Second, 2 * time.Second, 3 * time.Second} {
		c <- d
	}
	if x := drainedMedian(c); x != 2.5 {
		t.Errorf("%v s, want 2.5", x)
	}
}

// TestLoRAWithoutProcessorTime: a system without processor times has no ratio of them.
func TestLoRAWithoutProcessorTime(t *testing.T) {
	row := LoRARow{Batch: 2}
	row.compare(4, [2]time.Duration{time.Second, 2 * time.Second}, [2]time.Duration{})
	if text, err := json.Marshal(row); err != nil || row.Plain != 8 || row.Adapted != 4 || row.Ratio != 0.5 || row.CPURatio != 0 {
		t.Errorf("%s, %v", text, err)
	}
}
