package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestSmallModel: if the draft model is the model itself, all greedy drafts are right up to the
// last token, on any number of sockets. No draft model changes the output.
func TestSmallModel(t *testing.T) {
	const fry, dace = "../models/fry", "../models/dace"
	list := append(speculated(6, "full"), speculated(3, "streaming:sink=4,recent=28")...)
	p := sampler.Default()
	p.Temperature = 0
	for i := range 4 {
		list = append(list, &engine.Request{Prompt: text(i, 290), MaxTokens: 40, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1})
	}
	same := func(i int) bool { return i%4 == 0 && i < 6 || i >= 9 } // greedy and full, like the draft model
	const tiny = "../internal/engine/model/testdata/deepseek_v3"
	type smallModel struct {
		model, small string
		sockets      int
		mapping      string
	}
	states := withTokenizer(t, "../internal/engine/model/testdata/qwen3_5", fry)
	cases := []smallModel{{fry, fry, 3, "gather"}, {tiny, tiny + "_mtp", 3, "reduce"}, {states, states, 3, "gather"},
		{fry, fry, 1, "auto"}, {dace, fry, 1, "auto"}, {tiny, tiny + "_mtp", 1, "auto"}, {tiny, tiny + "_mtp", 4, "gather"}}
	switch {
	case testing.Short():
		cases = cases[:3]
	case !testlevel.Long():
		cases = cases[:5]
	}
	for _, c := range cases {
		e := startLocal(t, LocalConfig{Sockets: c.sockets, Threads: 1, KVBudget: 64 << 20, Draft: c.small,
			Serve: ServeConfig{Model: c.model, Mapping: c.mapping, Chunk: 100}})
		ask := func(mode string) []outcome {
			for _, r := range list {
				r.Speculate = mode
			}
			return speak(t, e, mode, list)
		}
		want := ask("off")
		for _, mode := range []string{"model:4", "model:9", "model"} {
			var drafted, right uint64
			for i, o := range ask(mode) {
				if o.events != want[i].events {
					t.Errorf("%s drafts %s, %d sockets, %s: request %d gives\n%s\nwithout drafts\n%s",
						c.small, c.model, c.sockets, mode, i, o.events, want[i].events)
				}
				if same(i) && c.small == c.model && mode == "model:4" && (o.drafted == 0 || o.right < o.drafted) {
					t.Errorf("%s drafts itself, %d sockets: %d of %d were right in request %d", c.small, c.sockets, o.right, o.drafted, i)
				}
				drafted, right = drafted+o.drafted, right+o.right
			}
			t.Logf("%s drafts %s, %d sockets, %s: %d of %d were right", c.small, c.model, c.sockets, mode, right, drafted)
			if mode == "model:9" && (drafted < 30 || right < 30 && c.model != tiny) { // the tiny model's MTP layer is random
				t.Errorf("%d of %d drafts were right: too few to test anything", right, drafted)
			}
		}
		waitIdle(t, e)
	}
}

// withTokenizer returns a folder with a tiny model and the tokenizer of another.
func withTokenizer(t *testing.T, dir, tokenizer string) string {
	t.Helper()
	out := t.TempDir()
	for name, from := range map[string]string{"config.json": dir, "model.safetensors": dir,
		"tokenizer_config.json": tokenizer, "tokenizer.json": tokenizer} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(out, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
