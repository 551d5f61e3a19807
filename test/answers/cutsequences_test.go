package answers

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// cutLayouts are configurations whose nodes together hold a sequence that fits none of them.
var cutLayouts = []cut{
	{sockets: 3, mapping: "gather", step: 96, chunk: 40, threads: 1},
	{sockets: 4, mapping: "reduce", shares: []float64{0.4, 0.1, 0.3, 0.2}, step: 64, chunk: 17, threads: 2},
}

// cutModels have the kinds of layers: with and without windows, recurrent states of each kind, shared caches.
var cutModels = regexp.MustCompile(`^(llama f32 bf16|llama q8_0 int8|(mistral_window|gemma3|random_odd|qwen3_next|granite_hybrid|` +
	`falcon_h1|lfm2|nemotron_h|swiftkv|swiftkv_across|gemma4_31b|gpt_oss) bf16 bf16)$`)

// fewCutModels are those at the default level.
var fewCutModels = regexp.MustCompile(`^(llama q8_0 int8|(mistral_window|qwen3_next|swiftkv) bf16 bf16)$`)

// TestCutSequences compares sequences whose cache is cut over nodes with those of one node. Each fits no node
// whole. Two run at a time at most, so that some are preempted and read again.
func TestCutSequences(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	chosen, models := fewCutModels, 0
	if testlevel.Long() {
		chosen = cutModels
	}
	for _, s := range setups() {
		if !chosen.MatchString(s.String()) {
			continue
		}
		models++
		t.Run(s.String(), func(t *testing.T) {
			dir := filepath.Join("../..", s.dir)
			if s.make != nil {
				dir = t.TempDir()
				if err := s.make("../..", dir); err != nil {
					t.Fatal(err)
				}
			}
			c, g := shape(t, dir, s.kv)
			lengths := []int{230}
			if c.MaxPositions > 1600 { // long enough to split the attention of a row
				lengths = append(lengths, 1420)
			}
			for _, n := range lengths {
				var requests []request
				for i, kind := range []string{greedy, drawn, argmax, drawn, scores} {
					requests = append(requests, newRequest(&c, "full", kind, n-80+i, 80-i))
				}
				want, err := s.ask(ctx, dir, cuts[0], requests, 1<<30)
				if err != nil {
					t.Fatal(err)
				}
				for _, layout := range cutLayouts {
					got, err := s.ask(ctx, dir, layout, requests, kvcache.ResidentBytes(g, n-1, n-1, kvcache.Full())-1)
					if err != nil {
						t.Fatalf("%v: %v", layout, err)
					}
					for i := range requests {
						if a, b := fmt.Sprint(want.answers[i]), fmt.Sprint(got.answers[i]); a != b {
							t.Errorf("%v, %v: cut %s, on one node %s", layout, requests[i], b, a)
						}
					}
				}
			}
		})
	}
	if want := map[*regexp.Regexp]int{fewCutModels: 4, cutModels: 14}[chosen]; models != want {
		t.Errorf("%d models run, want %d", models, want)
	}
}

// shape returns the config of a checkpoint and the geometry of its cache.
func shape(t *testing.T, dir, kv string) (model.Config, kvcache.Geometry) {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	of, err := tensor.ParseDType(kv)
	if err != nil {
		t.Fatal(err)
	}
	return ck.Config, shard.GeometryOf(&ck.Config, of)
}
