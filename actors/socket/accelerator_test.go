package socket

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/accelerator"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/native"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// realCard makes the tests use the machine's card instead of the emulated one, with larger loads:
// SHOAL_CARD=0 is cuda:0.
var realCard = os.Getenv("SHOAL_CARD")

var openOnce = sync.OnceValues(func() (*card.Card, error) {
	return card.Open(0, card.Options{Fail: func(err error) { panic(err) }})
})

// testCard returns the card of this process, which has one driver.
func testCard(t *testing.T) *card.Card {
	t.Helper()
	if realCard == "" {
		t.Setenv("LD_LIBRARY_PATH", emulator.Build(t))
	}
	c, err := openOnce()
	if errors.Is(err, native.ErrUnavailable) && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err) // linked dynamically: run with CGO_ENABLED=0
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onCard returns the device of a rig on a card. The memory of its caches is freed with the test.
func onCard(t *testing.T, c *card.Card, budget int64, dir string, kv tensor.DType) func(*tensor.Pool) layer.Device {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	d, err := accelerator.New(c, budget, ck.Config.CacheLayout(kv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return func(*tensor.Pool) layer.Device { return d }
}

// load is requests that arrive one after another, so that steps mix prompt chunks and decode rows: all of mixed on
// a real card, short ones on the emulated one.
func load(policy string) []*request { return loadOf(policy, 70) }

// loadOf returns load. On the emulated card, its longest prompt has the given number of tokens.
func loadOf(policy string, prompt int) []*request {
	if realCard != "" {
		return mixed(policy)[:6] // the seventh has more tokens than the shortest context of a model
	}
	var reqs []*request
	for i, n := range []int{1, 9, prompt} {
		q := &request{max: 4, owner: i, policy: policy, arrives: 2 * i, params: sampler.Default()}
		q.params.Seed, q.params.Logprobs = uint64(i), 5
		if i == 0 {
			q.params.Temperature = 0
		}
		for j := range n {
			q.prompt = append(q.prompt, int32((j*j*31+i*17+j)%200+5))
		}
		reqs = append(reqs, q)
	}
	return reqs
}

// TestCard checks that models on a card give exactly the tokens and the log-probabilities of the
// processor. It covers every model of the tree that a card serves, with every type of weights and
// caches, in whole prompts, chunks, batches and mixed steps.
func TestCard(t *testing.T) {
	c := testCard(t)
	files, err := filepath.Glob(filepath.Join(modelData, "*", "config.json"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	type form struct {
		weights string
		kv      tensor.DType
	}
	forms := []form{{"f32", tensor.F32}, {"bf16", tensor.BF16}, {"q8_0", tensor.BF16}, {"q4_0", tensor.Int8}, {"f16", tensor.F32}}
	// on the emulated card
	few := map[string][]form{"llama": forms, "qwen2": forms[2:3], "qwen3": forms[1:2], "gemma3": forms[2:3], "mistral_window": forms[3:4]}
	if testlevel.Long() {
		few = map[string][]form{"llama": forms, "qwen2": forms[2:3], "qwen3": forms[1:3], "gemma3": forms[1:3], "exaone4": forms[2:3],
			"mistral_window": forms[1:4], "qwen2_window": forms[2:3]}
	}
	served := 0
	for _, file := range files {
		dir := filepath.Dir(file)
		name := filepath.Base(dir)
		forms := forms
		if realCard == "" {
			forms = few[name]
		}
		for _, f := range forms {
			if refusedByCard(dir, f.weights) != nil {
				continue
			}
			served++
			t.Run(fmt.Sprint(name, " ", f.weights, " ", f.kv), func(t *testing.T) {
				prompt := 70
				if windowed(dir) {
					prompt = 190 // more than a ring holds
				}
				want := loadOf("full", prompt)
				base := rigConfig{dir: dir, sockets: 1, mapping: topology.Gather, weights: f.weights, kv: f.kv}
				newRig(t, base).generate(200, want...)
				for _, chunk := range []int{200, 31} {
					got := loadOf("full", prompt)
					here := base
					here.device = onCard(t, c, 1<<25, dir, f.kv)
					newRig(t, here).generate(chunk, got...)
					if !bytes.Equal(bits(t, got), bits(t, want)) {
						t.Errorf("chunks of %d: results differ from those of the processor", chunk)
					}
				}
			})
		}
	}
	if served < len(forms) {
		t.Errorf("only %d cases", served)
	}
}

// windowed reports whether a model has sliding windows.
func windowed(dir string) bool {
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return false
	}
	defer ck.Close()
	return ck.Config.Windows != nil
}

// TestCardHeads checks a sequence alone with heads that several thread blocks share: they rotate its query and key, and
// write its key and value.
func TestCardHeads(t *testing.T) {
	c := testCard(t)
	for _, f := range []struct {
		dim     int
		weights string
		kv      tensor.DType
	}{{32, "f32", tensor.F32}, {128, "q8_0", tensor.BF16}, {64, "q4_0", tensor.Int8}} {
		t.Run(fmt.Sprint(f.dim, " ", f.weights, " ", f.kv), func(t *testing.T) {
			dir, shape := t.TempDir(), modeltest.Small()
			shape.HeadDim, shape.Vocab, shape.AttentionBias = f.dim, 512, true
			if err := modeltest.Write(dir, shape, 7); err != nil {
				t.Fatal(err)
			}
			want, got := loadOf("full", 70)[:1], loadOf("full", 70)[:1]
			base := rigConfig{dir: dir, sockets: 1, mapping: topology.Gather, weights: f.weights, kv: f.kv}
			newRig(t, base).generate(200, want...)
			base.device = onCard(t, c, 1<<25, dir, f.kv)
			newRig(t, base).generate(200, got...)
			if !bytes.Equal(bits(t, got), bits(t, want)) {
				t.Error("results differ from those of the processor")
			}
		})
	}
}

// refusedByCard returns the error of a model that a card does not serve, or nil.
func refusedByCard(dir, weights string) error {
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	dt, err := tensor.ParseDType(weights)
	if err != nil {
		return err
	}
	return accelerator.Supports(&ck.Config, dt)
}

// TestCardDies checks that the processor continues the sequences of a card that has failed: the same
// tokens, from the prompt and the tokens so far.
func TestCardDies(t *testing.T) {
	c := testCard(t)
	base := rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, weights: "q8_0", kv: tensor.BF16}
	ask := func() *request {
		return &request{prompt: somePrompt(40, 1), max: 6, params: greedy(5)}
	}
	want := ask()
	newRig(t, base).generate(64, want)
	here := base
	here.device = onCard(t, c, 1<<25, goldenDir, tensor.BF16)
	first := ask()
	first.max = 3
	newRig(t, here).generate(64, first)
	rest := ask() // as a coordinator continues on another node: prefill of the prompt and of the tokens so far
	rest.prompt, rest.max = append(rest.prompt, first.tokens...), want.max-first.max
	newRig(t, base).generate(64, rest)
	all := &request{scores: append(first.scores, rest.scores...)}
	if !bytes.Equal(bits(t, []*request{all}), bits(t, []*request{want})) {
		t.Errorf("tokens %v on the card, then %v; want %v", first.tokens, rest.tokens, want.tokens)
	}
}

// TestCardRefuses lists the models and settings that a card does not compute.
func TestCardRefuses(t *testing.T) {
	for name, why := range map[string]string{"deepseek_v2": "latent", "llama4": "experts with",
		"qwen3_5": "recurrent", "cohere": "mean", "gpt_oss": "experts with biases", "olmo2": "norms of queries"} {
		if err := refusedByCard(filepath.Join(modelData, name), "q8_0"); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", name, err, why)
		}
	}
	if err := refusedByCard(goldenDir, "iq4_nl"); err == nil || !strings.Contains(err.Error(), "iq4_nl") {
		t.Errorf("iq4_nl: %v", err)
	}
	for _, spec := range []string{"quest:page=16,budget=64", "streaming:sink=4,recent=60,positions=cache",
		"adakv:topk=40,obs=8,pool=5", "squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8", "shadowkv:chunk=8,budget=24,outliers=2,local=1"} {
		p, err := kvpolicy.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := accelerator.Policy(p); err == nil || !strings.Contains(err.Error(), p.Name()) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}
