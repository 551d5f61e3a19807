package cluster_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// architectures are tested with faults. Every run tests the ones without long, and make chaos tests
// all. The tiny ones are random models from the goldens of package model.
var architectures = []struct {
	name       string
	tiny, long bool
}{
	{name: "dace"}, // bundled, with MLA and experts
	{name: "mistral_window", tiny: true},
	{name: "swiftkv_across", tiny: true},
	{name: "swiftkv", tiny: true, long: true},
	{name: "granite", tiny: true, long: true},
	{name: "gpt_oss", tiny: true},
	{name: "olmo2", tiny: true, long: true},
	{name: "olmo3", tiny: true, long: true},
	{name: "exaone4", tiny: true, long: true},
	{name: "seed_oss", tiny: true, long: true},
	{name: "hunyuan_v1_dense", tiny: true, long: true},
	{name: "cohere", tiny: true, long: true},
	{name: "cohere_qk_norm", tiny: true, long: true},
	{name: "cohere2", tiny: true, long: true},
	{name: "gemma2", tiny: true, long: true},
	{name: "gemma3", tiny: true, long: true},
	{name: "gemma4_e2b", tiny: true},
	{name: "gemma4_31b", tiny: true, long: true},
	{name: "gemma4_26b", tiny: true, long: true},
	{name: "mixtral", tiny: true, long: true},
	{name: "qwen2", tiny: true, long: true},
	{name: "qwen2_window", tiny: true, long: true},
	{name: "qwen3", tiny: true, long: true},
	{name: "qwen3_moe", tiny: true, long: true},
	{name: "smollm3", tiny: true, long: true},
	{name: "llama4", tiny: true, long: true},
	{name: "deepseek_v32", tiny: true, long: true},
	{name: "glm_moe_dsa", tiny: true, long: true},
	{name: "glm4_moe", tiny: true, long: true},
	{name: "qwen2_moe", tiny: true, long: true},
	{name: "glm4_moe_lite", tiny: true, long: true},
	{name: "minimax_m2", tiny: true, long: true},
	{name: "olmoe", tiny: true, long: true},
	{name: "granitemoe", tiny: true, long: true},
	{name: "ernie4_5_moe", tiny: true, long: true},
	{name: "hy_v3", tiny: true, long: true},
	{name: "hunyuan_v1_moe", tiny: true, long: true},
	{name: "mistral3", tiny: true, long: true},
	{name: "ernie4_5", tiny: true, long: true},
	{name: "glm4", tiny: true, long: true},
	{name: "glm", tiny: true, long: true},
	{name: "qwen2_5_vl", tiny: true, long: true},
	{name: "qwen3_vl_moe", tiny: true, long: true},
	{name: "qwen3_5", tiny: true, long: true},
	{name: "qwen3_5_moe", tiny: true, long: true},
	{name: "qwen3_next", tiny: true, long: true},
	{name: "lfm2", tiny: true, long: true},
	{name: "lfm2_moe", tiny: true, long: true},
	{name: "granite_hybrid", tiny: true, long: true},
	{name: "granite_hybrid_moe", tiny: true, long: true},
	{name: "falcon_h1", tiny: true, long: true},
	{name: "nemotron_h", tiny: true, long: true},
	{name: "nemotron_h_moe", tiny: true, long: true},
	{name: "deepseek_v2", tiny: true, long: true},
	{name: "deepseek_v3", tiny: true, long: true},
}

// folder returns the model folder. A tiny model gets the tokenizer of another model with the same
// number of ids.
func folder(t *testing.T, name string, tiny bool) string {
	t.Helper()
	if !tiny {
		return filepath.Join("..", "..", "models", name)
	}
	const data = "../../internal/engine/model/testdata"
	dir := t.TempDir()
	for _, file := range [][2]string{{name, "config.json"}, {name, "generation_config.json"},
		{name, "model.safetensors"}, {"llama", "tokenizer.json"}, {"llama", "tokenizer_config.json"}} {
		from, err := filepath.Abs(filepath.Join(data, file[0], file[1]))
		if err == nil {
			err = os.Symlink(from, filepath.Join(dir, file[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestChaosArchitectures kills one node (make chaos: then a second one) under every architecture,
// with prompts longer than its windows. Each stream equals the undisturbed run, in every token and
// logprob.
func TestChaosArchitectures(t *testing.T) {
	testlevel.NeedLong(t)
	n := 6
	if testing.Short() {
		n = 4
	}
	for _, a := range architectures {
		t.Run(a.name, func(t *testing.T) {
			if a.long && !full() {
				t.Skip("long: make chaos")
			}
			tokens := 40
			if a.tiny {
				tokens = 200 // more tokens, because its steps are fast
			}
			c := up(t, 3, "--model", folder(t, a.name, a.tiny))
			r := rand.New(rand.NewPCG(5, 6))
			reqs := streaming(n, tokens)
			for i := range reqs {
				prompt := make([]int, 30+25*i)
				for j := range prompt {
					prompt[j] = 16 + r.IntN(512-16)
				}
				reqs[i].body["prompt"] = prompt
			}
			want, stall := c.undisturbed(t, reqs)
			t.Logf("undisturbed: longest silence %.2f s", stall.Seconds())
			for i, id := range []string{"node-1", "node-0"} {
				surviveFault(t, c, a.name+", kill -9 "+id, reqs, want, func() { c.signal(id, syscall.SIGKILL) })
				c.waitNodes(2-i, recoverLimit)
				if s := c.state(); s.Recoveries < uint64(i+1) {
					t.Errorf("%d recoveries after %d kills: nothing was disturbed", s.Recoveries, i+1)
				}
				if !full() {
					break
				}
			}
			c.waitIdle(patience)
		})
	}
}
