package cluster_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/bench"
)

// Prompts take many steps, in which sequences that were read first decode: what is measured begins
// when the last one does, and all the others still do.
func TestBenchDecodesTogether(t *testing.T) {
	t.Parallel()
	out, errs, code := command(t, time.Minute, nil, "bench", "cluster", "-m", goldenModel, "-n", "2", "--batch", "6", "--context", "1500", "--tokens", "24", "--json")
	var f bench.Processes
	if err := json.Unmarshal([]byte(out), &f); code != 0 || err != nil {
		t.Fatalf("ended with %d, %v: %s%s", code, err, out, errs)
	}
	if f.Batch != 6 || f.Steps < 16 || f.Steps > 32 || f.TokensPerS <= 0 {
		t.Errorf("24 tokens of each together in %d steps: %s", f.Steps, out)
	}
}
