package socket

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestFP8 serves a checkpoint in FP8 blocks and one with the same numbers in F32. Both must give
// the same bits, although the blocks do not align with the sockets' slices.
func TestFP8(t *testing.T) {
	ck, err := model.Open(filepath.Join(modelData, "mixtral"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	quantised, plain := filepath.Join(dir, "q"), filepath.Join(dir, "p")
	if err := modeltest.FP8(ck, 48, 24, quantised, plain); err != nil {
		t.Fatal(err)
	}
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	want, got := mixed("full")[:4], mixed("full")[:4]
	newRig(t, rigConfig{dir: plain, sockets: 1, mapping: topology.Gather, kv: tensor.F32}).generate(64, want...)
	newRig(t, rigConfig{dir: quantised, sockets: 3, mapping: topology.Reduce, kv: tensor.F32}).generate(64, got...)
	if !bytes.Equal(bits(t, got), bits(t, want)) {
		t.Error("FP8 weights and the same numbers in F32 give different results")
	}
}

// TestHeldFormsSameBits serves models whose codes are kept as they are stored. Every number of sockets
// gives the same bits, which are near those of the same weights in float32.
func TestHeldFormsSameBits(t *testing.T) {
	for _, name := range []string{"quantised/gptq", "quantised/w4a16_asym", "quantised/mxfp4", "gpt_oss_mxfp4", "quantised/w8a8", "quantised/fp8_block"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(modelData, name)
			ck, err := model.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			held := ck.Config.DType
			if err := ck.Close(); err != nil {
				t.Fatal(err)
			}
			g := readGoldens(t, dir)
			generate := func(sockets int, m topology.Mapping) (out []*request) {
				for i, it := range g.Items {
					out = append(out, &request{prompt: it.Prompt, max: 8, owner: i, params: greedy(len(it.Logits))})
				}
				newRig(t, rigConfig{dir: dir, sockets: sockets, mapping: m, kv: tensor.F32, weights: held.String()}).generate(64, out...)
				return out
			}
			want := generate(1, topology.Gather)
			for i, it := range g.Items {
				compareLogits(t, want[i].scores[0].Drawn[0].Top, it.Logits, 1)
			}
			for _, n := range []int{3, 4} {
				for _, m := range topology.Mappings {
					if !bytes.Equal(bits(t, generate(n, m)), bits(t, want)) {
						t.Errorf("%d sockets, %v: other bits than on one", n, m)
					}
				}
			}
		})
	}
}
