package cluster

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TestMTPOfDace: the bundled multi-token prediction layer drafts more than a quarter of dace's next
// tokens correctly, and the output does not change.
func TestMTPOfDace(t *testing.T) {
	const dace = "../models/dace"
	tok, err := tokenizer.Load(dace)
	if err != nil {
		t.Fatal(err)
	}
	var list []*engine.Request
	for i, prompt := range []string{
		"package main\n\nimport \"fmt\"\n\nfunc main() {\n",
		"// Reverse returns a copy of s in the opposite order.\nfunc Reverse(s []int) []int {\n",
		"type Point struct {\n\tX, Y int\n}\n\nfunc (p *Point) ", "A mutex is used to",
		"func TestAdd(t *testing.T) {\n\tfor _, c := range []struct {",
	} {
		p := sampler.Default()
		if p.Temperature, p.Seed = 0, uint64(i); i%2 == 1 {
			p.Temperature = 0.5
		}
		list = append(list, &engine.Request{Prompt: tok.Encode(prompt, true), MaxTokens: 64, Sampling: p, PromptLogprobs: -1})
	}
	for _, sockets := range []int{1, 3} {
		e := startLocal(t,
			LocalConfig{Sockets: sockets, Threads: 1, KVBudget: 64 << 20, Draft: dace + "-mtp", Serve: ServeConfig{Model: dace, Speculate: "off"}})
		want := speak(t, e, "off", list)
		for _, mode := range []string{"model:1", "model:2"} {
			for _, r := range list {
				r.Speculate = mode
			}
			var drafted, right uint64
			for i, o := range speak(t, e, mode, list) {
				if o.events != want[i].events {
					t.Errorf("%d sockets, %s: request %d gives\n%s\nwithout drafts\n%s", sockets, mode, i, o.events, want[i].events)
				}
				drafted, right = drafted+o.drafted, right+o.right
			}
			t.Logf("%d sockets, %s: %d of %d were right", sockets, mode, right, drafted)
			if drafted < 60 || 4*right < drafted {
				t.Errorf("%d sockets, %s: %d of %d guesses were right", sockets, mode, right, drafted)
			}
		}
		for _, r := range list {
			r.Speculate = ""
		}
		waitIdle(t, e)
	}
}
