package cluster_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/bench"
)

// Reading the prompts takes many steps, during which the first sequences already decode. The
// measurement starts with the last sequence, and all others still decode then.
func TestBenchDecodesTogether(t *testing.T) {
	t.Parallel()
	out, errs, code := command(t, time.Minute, nil, "lab", "cluster", "-m", goldenModel, "-n",
		"2", "--batch", "6", "--context", "1500", "--tokens", "24", "--json")
	var f bench.Processes
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil {
		t.Fatalf("ended with %d, %v: %s%s", code, err, out, errs)
	}
	if f.Batch != 6 || f.Steps < 16 || f.Steps > 32 || f.TokensPerS <= 0 {
		t.Errorf("24 tokens of each together in %d steps: %s", f.Steps, out)
	}
}

// A shape has random weights and no tokenizer.
func TestBenchShape(t *testing.T) {
	t.Parallel()
	out, errs, code := command(t, time.Minute, nil, "lab", "cluster", "-m", "bench160m", "-n",
		"2", "--context", "16", "--tokens", "4", "--json")
	var f bench.Processes
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil || f.TokensPerS <= 0 {
		t.Fatalf("ended with %d, %v: %s%s", code, err, out, errs)
	}
}

// Every thread count is tried, and the chosen one is among them.
func TestBenchTrials(t *testing.T) {
	t.Parallel()
	out, errs, code := command(t, time.Minute, []string{"GOMAXPROCS=4"}, "lab", "cluster", "-m",
		goldenModel, "-n", "2", "--trials", "16", "--json")
	var f bench.Trials
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil {
		t.Fatalf("ended with %d, %v: %s%s", code, err, out, errs)
	}
	if !slices.Equal(f.Threads, []int{2, 1}) || len(f.Micros) != 2 || slices.Max(f.Plans) < 3*16 ||
		slices.Min(f.Micros) <= 0 || !slices.Contains(f.Threads, f.Chosen) || f.Near < 0 || f.Near > 1.001 || f.Longer < 0 {
		t.Errorf("16 rounds of 2 threads and 1: %s", out)
	}
}
