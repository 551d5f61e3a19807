package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// chatAndVectors is a language model and an encoder side by side.
func chatAndVectors(sockets int) LocalConfig {
	return LocalConfig{Sockets: sockets, Threads: 1, KVBudget: 64 << 20,
		Serve: ServeConfig{Model: goldenDir, Names: []string{"chat"}, Weights: "f32", KV: "f32", Chunk: 48, StepTokens: 128, MaxSequences: 8},
		Others: []ServeConfig{{Model: filepath.Join(vectorModels, "encoders", "bert"),
			Names: []string{"vectors", "bert"}, Weights: "f32", KV: "f32"}}}
}

// pooled returns the mean of the states of a prompt in the model "vectors".
func pooled(t *testing.T, e engine.Engine, id string, prompt []int32) []float32 {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := e.Submit(ctx,
		&engine.Request{ID: id, Model: "vectors", Prompt: prompt, Pool: pooling.Mean, Sampling: sampler.Default(), PromptLogprobs: -1})
	if err != nil {
		t.Error(err)
		return nil
	}
	var out []float32
	for ev := range events {
		if ev.Err != nil {
			t.Error(ev.Err)
		}
		if ev.Finish != "" {
			out = ev.Pooled
		}
	}
	return out
}

// TestTwoModels: each of two models answers as it does alone, on any number of nodes, while both work
// and while placements end under both.
func TestTwoModels(t *testing.T) {
	items, texts := goldens(t), readVectorGoldens(t, "encoders/bert").Items
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1,
		Serve: ServeConfig{Model: filepath.Join(vectorModels, "encoders", "bert"), Names: []string{"vectors"}, Weights: "f32", KV: "f32"}})
	var want []string
	for i, x := range texts {
		want = append(want, fmt.Sprint(pooled(t, alone, fmt.Sprint(i), x.IDs)))
	}
	for _, sockets := range []int{1, 3} {
		t.Run(fmt.Sprint(sockets), func(t *testing.T) {
			c := startLocal(t, chatAndVectors(sockets))
			var wg sync.WaitGroup
			for round := range 3 {
				for i, g := range items {
					wg.Go(func() {
						if got := generate(t, c, fmt.Sprint("chat", round, i), g.Prompt, len(g.Greedy)); !slices.Equal(got, g.Greedy) {
							t.Errorf("round %d, prompt %d: %v, want %v", round, i, got, g.Greedy)
						}
					})
				}
				wg.Go(func() {
					for i, x := range texts {
						if got := fmt.Sprint(pooled(t, c, fmt.Sprint("vector", round, i), x.IDs)); got != want[i] {
							t.Errorf("round %d, text %d: other bits than the model alone", round, i)
						}
					}
				})
			}
			epoch := c.director.Serving(0).Placement.Epoch
			time.Sleep(20 * time.Millisecond)
			c.director.Broken(epoch, "the test ends the placement")
			wg.Wait()
			if g := c.director.Serving(1); g == nil || g.Placement.Epoch <= epoch || g.Model != 1 {
				t.Errorf("after epoch %d the second model is served by %+v", epoch, g)
			}
			s := c.Cluster()
			if len(s.Models) != 2 || s.Models[0].Model != "chat" || !slices.Equal(s.Models[1].Names, []string{"vectors", "bert"}) {
				t.Fatalf("models %+v", s.Models)
			}
			total := int64(sockets) * (64 << 20)
			if a, b := s.Models[0].KVBudgetBytes, s.Models[1].KVBudgetBytes; a+b > total ||
				a+b < total-int64(2*sockets) || a < total/10 || b < total/10 {
				t.Errorf("of %d bytes of caches, the models have %d and %d", total, a, b)
			}
			if len(s.Nodes) != sockets || s.Nodes[0].KVBudgetBytes < 64<<20-2 || s.Nodes[0].WeightBytes == 0 && s.Models[1].WeightBytes != 0 {
				t.Errorf("nodes %+v", s.Nodes)
			}
		})
	}
}

// TestUnknownModel: an engine of several models refuses the name of another.
func TestUnknownModel(t *testing.T) {
	c := startLocal(t, chatAndVectors(1))
	_, err := c.Submit(t.Context(), &engine.Request{ID: "x", Model: "other", Prompt: []int32{1}, MaxTokens: 1})
	if err == nil || !strings.Contains(err.Error(), `no model "other"`) {
		t.Error(err)
	}
	if got := generate(t, c, "default", goldens(t)[0].Prompt, 3); !slices.Equal(got, goldens(t)[0].Greedy[:3]) {
		t.Errorf("a request that names no model gets %v", got)
	}
}

// TestModelsAreDistinct: the same model twice, or one name for two, is an error with both folders.
func TestModelsAreDistinct(t *testing.T) {
	for _, c := range []struct {
		change func(*LocalConfig)
		want   string
	}{
		{func(c *LocalConfig) { c.Others[0] = c.Serve }, "are the same model"},
		{func(c *LocalConfig) { c.Others[0].Names = []string{"x", "chat"} }, `the same name "chat"`},
		{func(c *LocalConfig) { c.Serve.LoRA = map[string]string{"bert": "/folder"} }, `the same name "bert"`},
		{func(c *LocalConfig) { c.Others[0].MaxContext = 1 << 20 }, "model vectors: cluster: max-context 1048576"},
	} {
		cfg := chatAndVectors(1)
		c.change(&cfg)
		l, err := New(t.Context(), cfg)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestSplitMemory: given sizes come first, the others share the rest by tokens.
func TestSplitMemory(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		wants []memoryWant
		want  []int64
	}{
		{100, []memoryWant{{perToken: 1}}, []int64{100}},
		{100, []memoryWant{{perToken: 4}, {perToken: 1}}, []int64{80, 20}},
		{100, []memoryWant{{perToken: 4}, {fixed: 30}}, []int64{70, 30}},
		{100, []memoryWant{{fixed: 10}, {perToken: 1}, {perToken: 2}}, []int64{10, 30, 60}},
		{100, []memoryWant{{fixed: 80}, {fixed: 80}, {perToken: 1}}, []int64{80, 20, 0}},
		{100, []memoryWant{{}, {}}, []int64{50, 50}},
		{-1, []memoryWant{{perToken: 1}, {fixed: 5}}, []int64{0, 0}},
	} {
		if got := splitMemory(c.bytes, c.wants); !slices.Equal(got, c.want) {
			t.Errorf("%d bytes for %v: %v, want %v", c.bytes, c.wants, got, c.want)
		}
	}
}

// TestAddModel: the state of the cluster counts the requests and the memory of all models.
func TestAddModel(t *testing.T) {
	all := wire.ClusterState{Running: 1, TokensPerSecond: 2,
		Nodes: []wire.NodeState{{ID: "a", KVUsedBytes: 5, Late: 0.1}, {ID: "b"}}, Recovery: &wire.RecoveryState{Preemptions: 1}}
	addModel(&all, &wire.ClusterState{Model: "m", Running: 2, Waiting: 3, WaitingReason: "full",
		TokensPerSecond: 4, Sequences: []wire.SequenceState{{Node: "a"}},
		Nodes: []wire.NodeState{{ID: "b", KVUsedBytes: 7, Late: 0.5, RSSBytes: 9}}, Recovery: &wire.RecoveryState{Preemptions: 5}})
	if all.Running != 3 || all.Waiting != 3 || all.WaitingReason != "full" || all.TokensPerSecond != 6 ||
		all.Sequences[0].Model != "m" || all.Recovery.Preemptions != 6 {
		t.Errorf("%+v", all)
	}
	if a, b := all.Nodes[0], all.Nodes[1]; a.KVUsedBytes != 5 || b.KVUsedBytes != 7 || b.Late != 0.5 || b.RSSBytes != 0 {
		t.Errorf("nodes %+v", all.Nodes)
	}
}
