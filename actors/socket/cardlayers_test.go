package socket

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// TestCardLayers checks that prompts that are read layer by layer give the processor's results of chunks: on a card
// alone, on cards and CPUs in one group, with the residual stream on the card or in a file.
func TestCardLayers(t *testing.T) {
	testCard(t)
	for i, c := range []struct {
		model, weights string
		kv             tensor.DType
		kinds          string // of the ranks, see ranksOn
		mapping        topology.Mapping
		sweep          int // tokens of a pass; above 32, norms are exchanged rounded
		group          int // layers at a time
		file           bool
		policy         string
	}{
		{"llama", "q8_0", tensor.BF16, "c", topology.Gather, 31, 1, false, "snapstream:sink=4,recent=8,topk=20,obs=6,pool=3"},
		{"llama", "q8_0", tensor.BF16, "c", topology.Gather, 40, 2, true, "h2o:recent=8,topk=20,step=1"},
		{"qwen3", "bf16", tensor.F32, "c", topology.Gather, 16, 1, false, "snapkv:topk=20,obs=8,pool=5"},
		{"llama", "q8_0", tensor.BF16, "cp", topology.Reduce, 31, 1, false, "snapstream:sink=4,recent=8,topk=20,obs=6,pool=3"},
		{"llama", "q8_0", tensor.BF16, "cc", topology.Gather, 50, 1, false, "pyramidkv:topk=20,obs=8,pool=5,beta=4"},
		{"llama", "q4_0", tensor.Int8, "pc", topology.Gather, 31, 1, true, "tova:size=30"},
	} {
		if !testlevel.Long() && realCard == "" && i%2 > 0 {
			continue
		}
		t.Run(fmt.Sprint(c.model, " ", c.weights, " ", c.kinds, " ", c.mapping, " ", c.sweep, " ", c.policy), func(t *testing.T) {
			dir := filepath.Join(modelData, c.model)
			requests := func() []*request {
				all := loadOf(c.policy, 90)
				return []*request{all[2], all[1]}
			}
			want, got := requests(), requests()
			newRig(t, rigConfig{dir: dir, sockets: 1, mapping: topology.Gather, weights: c.weights, kv: c.kv}).generate(200, want...)
			r := rigConfig{dir: dir, sockets: len(c.kinds), mapping: c.mapping, weights: c.weights, kv: c.kv, sweep: c.sweep, group: c.group,
				device: ranksOn(t, c.kinds, dir, c.kv)}
			if c.file {
				disk, err := tier.OpenScratch(filepath.Join(t.TempDir(), "kv"), 1<<24, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(disk.Close)
				r.disk = disk
			}
			newRig(t, r).generate(130, got...)
			if !bytes.Equal(bits(t, got), bits(t, want)) {
				t.Errorf("tokens %v and %v, not %v and %v", got[0].tokens, got[1].tokens, want[0].tokens, want[1].tokens)
			}
		})
	}
}
