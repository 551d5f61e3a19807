package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
	"github.com/shoal-llm/shoal/topology"
)

const goldenDir = "../internal/engine/model/testdata/llama"

type golden struct {
	Prompt []int32 `json:"prompt"`
	Greedy []int32 `json:"greedy"`
}

func goldens(t *testing.T) []golden {
	t.Helper()
	var g struct {
		Items []golden `json:"items"`
	}
	b, err := os.ReadFile(goldenDir + "/goldens.json")
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g.Items
}

// patience is the deadline of every wait; it allows for a heavily loaded machine.
const patience = 2 * time.Minute

// startLocal starts a cluster with long deadlines, so that a starved socket is not considered hung.
func startLocal(t testing.TB, cfg LocalConfig) *Local {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if cfg.Serve.StepDeadline == 0 {
		cfg.Serve.StepDeadline, cfg.Serve.SyncDeadline = patience, patience
	}
	cfg.Serve.Logger = slog.New(slog.DiscardHandler)
	c, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func generate(t testing.TB, e engine.Engine, id string, prompt []int32, max int, badWords ...[]int32) []int32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := sampler.Default()
	p.Temperature, p.BadWords = 0, badWords
	events, err := e.Submit(ctx, &engine.Request{ID: id, Prompt: prompt, MaxTokens: max, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1})
	if err != nil {
		t.Error(err)
		return nil
	}
	var out []int32
	for ev := range events {
		if ev.Err != nil {
			t.Error(ev.Err)
		}
		if ev.Token != engine.NoToken {
			out = append(out, ev.Token)
		}
	}
	return out
}

// TestLocalServesGoldens runs batcher, stepper and sockets together in one process.
func TestLocalServesGoldens(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := startLocal(t,
				LocalConfig{Sockets: n, Threads: 1, Serve: ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32", Chunk: 48, StepTokens: 128}})
			items := goldens(t)
			got := make([][]int32, len(items))
			done := make(chan int)
			for i, g := range items {
				go func() {
					got[i] = generate(t, c, fmt.Sprint("r", i), g.Prompt, len(g.Greedy))
					done <- i
				}()
			}
			for range items {
				<-done
			}
			for i, g := range items {
				if !slices.Equal(got[i], g.Greedy) {
					t.Errorf("prompt %d: got %v, want %v", i, got[i], g.Greedy)
				}
			}
			waitIdle(t, c)
			for _, node := range c.Cluster().Nodes {
				if node.Role != string(topology.RoleBoth) {
					t.Errorf("%s has the role %q, want %q", node.ID, node.Role, topology.RoleBoth)
				}
			}
		})
	}
}

// waitIdle waits until all cache memory is free.
func waitIdle(t testing.TB, e engine.Engine) {
	t.Helper()
	testutil.Eventually(t, patience, "no cache memory in use", func() (bool, string) {
		used, nodes := int64(0), e.Cluster().Nodes
		for _, n := range nodes {
			used += n.KVUsedBytes
		}
		return used == 0, fmt.Sprintf("%+v", nodes)
	})
}

// TestLocalPreemptsUnderPressure: eight sequences run with memory for about two, and their tokens
// do not change. Bad words exclude five tokens from the second output token on, so a sequence that
// lost its output when it was read again would continue differently.
func TestLocalPreemptsUnderPressure(t *testing.T) {
	const tokens = 96 // caches grow from one block to three
	g := goldens(t)[4]
	left := []int32{g.Greedy[0], 11, 12, 13, 14}
	var words [][]int32
	for token := range int32(512) {
		for _, begun := range left {
			if !slices.Contains(left, token) {
				words = append(words, []int32{begun, token})
			}
		}
	}
	serve := ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32"}
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: serve})
	want := [][]int32{generate(t, alone, "plain", g.Prompt, tokens), generate(t, alone, "words", g.Prompt, tokens, words...)}
	if !slices.Equal(want[0][:len(g.Greedy)], g.Greedy) {
		t.Errorf("got %v, want %v", want[0], g.Greedy)
	}
	for _, token := range want[1] {
		if !slices.Contains(left, token) {
			t.Fatalf("%v has a token that the words refuse", want[1])
		}
	}
	c := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, KVBudget: 250_000, Serve: serve})
	done := make(chan struct{})
	for i := range 8 {
		go func() {
			got := generate(t, c, fmt.Sprint("r", i), g.Prompt, tokens, words[:i%2*len(words)]...)
			if !slices.Equal(got, want[i%2]) {
				t.Errorf("request %d: got %v, want %v", i, got, want[i%2])
			}
			done <- struct{}{}
		}()
	}
	for range 8 {
		<-done
	}
	waitIdle(t, c)
	if c.Cluster().Recovery.Preemptions == 0 {
		t.Error("nothing was preempted")
	}
}

// TestLocalRefusesSizes checks that an error names the field of LocalConfig, its value and what is possible.
func TestLocalRefusesSizes(t *testing.T) {
	for want, cfg := range map[string]LocalConfig{
		"LocalConfig.Sockets is 257: want 1 to 256":                            {Sockets: 257, Threads: 1},
		"LocalConfig.KVBudget is -1 bytes: want a positive number":             {KVBudget: -1, Threads: 1},
		"LocalConfig.Threads is -2: want a positive number, or 0 for all CPUs": {Threads: -2},
		"ServeConfig.Model is empty: name a model":                             {Threads: 1},
		"LocalConfig.Shares has 3 elements for 2 sockets: want one for each":   {Sockets: 2, Threads: 1, Shares: []float64{1, 1, 1}},
	} {
		if c, err := New(t.Context(), cfg); err == nil {
			c.Close()
			t.Errorf("%+v was accepted", cfg)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestMemoryHubRefuses checks that an error names the rank, its epoch and the cause.
func TestMemoryHubRefuses(t *testing.T) {
	h := &memoryHub{size: 2}
	if _, err := h.connect(t.Context(), "g", 3, 1, nil); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		epoch uint32
		rank  int
		want  string
	}{{2, 0, "rank 0 connects in epoch 2, but epoch 3 has begun"}, {3, 2, "rank 2 connects in epoch 3, which has 2 ranks"}} {
		if _, err := h.connect(t.Context(), "g", x.epoch, x.rank, nil); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %q", err, x.want)
		}
	}
}
