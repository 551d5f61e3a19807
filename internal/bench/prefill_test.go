package bench

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A prompt takes the memory of caches that the ledger books, in chunks and layer by layer. The first layers of a prompt
// that is read layer by layer have its peak.
func TestPromptMemory(t *testing.T) {
	o := Options{Model: "fry", Weights: tensor.Q8_0, KV: tensor.BF16, Threads: 1, Context: 1500, Chunk: 128, Repeat: 1,
		Policy: "snapstream:sink=4,recent=60,topk=64,obs=8,pool=5"}
	run := func(o Options) *Prefill {
		p, err := RunPrefill(t.Context(), o, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if p.Memory.Caches != p.Memory.Ledger || p.TokensPerS <= 0 {
			t.Errorf("%s, %d layers, files in %q: %+v", o.Prefill, o.Layers, o.KVDisk, p)
		}
		return p
	}
	chunks := run(o)
	o.Prefill = booking.Layers
	layers := run(o)
	if layers.Layers != 8 || layers.Memory.Caches >= chunks.Memory.Caches {
		t.Errorf("%d layers, %d bytes, in chunks %d", layers.Layers, layers.Memory.Caches, chunks.Memory.Caches)
	}
	if o.Layers = 2; run(o).Memory.Caches != layers.Memory.Caches {
		t.Error("two layers have another peak")
	}
	o.KVDisk = filepath.Join(t.TempDir(), "kv")
	if files := run(o); files.Memory.Caches >= layers.Memory.Caches {
		t.Errorf("%d bytes with the residual stream in a file, %d in memory", files.Memory.Caches, layers.Memory.Caches)
	}
	o.Policy = "full"
	_, err := RunPrefill(t.Context(), o, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "choose a policy that drops tokens") {
		t.Errorf("policy full: %v", err)
	}
}
