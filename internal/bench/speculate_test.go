package bench

import (
	"log/slog"
	"testing"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// TestRunSpeculate: every mode is measured for every text and batch, next to off.
func TestRunSpeculate(t *testing.T) {
	c, err := cluster.New(t.Context(), cluster.LocalConfig{Sockets: 1, Threads: 1, KVBudget: 1 << 24,
		Serve: cluster.ServeConfig{Model: "../engine/model/testdata/llama", Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	greedy := func(int) sampler.Params {
		p := sampler.Default()
		p.Temperature = 0
		return p
	}
	o := SpeculateOptions{Engine: c, Alone: true, Batch: []int{1, 2}, Modes: []string{"lookup", "suffix"}, Rounds: 2,
		Texts: []SpeculateText{{Kind: "x", Prompts: [][]int32{{1, 2, 3}, {4, 5, 6, 4, 5}}, Tokens: 90, Sampling: greedy}}}
	seen := 0
	rows, err := RunSpeculate(t.Context(), o, func(Speculate) { seen++ })
	if err != nil || len(rows) != 6 || seen != 6 {
		t.Fatalf("%d rows, %d reported: %v", len(rows), seen, err)
	}
	for i, r := range rows {
		if r.Text != "x" || r.Batch != 1+i/3 || r.Mode != []string{"off", "lookup", "suffix"}[i%3] ||
			r.Tokens != 90*r.Batch || !(r.TokensPerS > 0) || !(r.Off > 0) || !(r.Low > 0) || r.Over < r.Low ||
			r.High < r.Over || len(r.Pairs) != 2 || !(r.Work > 0) || r.PerStep < 1 {
			t.Errorf("row %d: %+v", i, r)
		}
	}
}
