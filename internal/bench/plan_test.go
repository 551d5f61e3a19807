package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// The batch columns of table 5 of SnapStream (arXiv 2511.03092): DeepSeek-R1 on 16 sockets of 64
// GB, with a quarter of the cache kept.
func TestPlanTable5(t *testing.T) {
	m, err := PlanShape("deepseek-r1")
	if err != nil {
		t.Fatal(err)
	}
	if m.Parameters != 671_026_419_200 {
		t.Errorf("%d parameters, published are 671B", m.Parameters)
	}
	o := PlanOptions{Sockets: 16, Memory: 64e9, Weights: tensor.Q8_0, KV: tensor.BF16, Rows: 512,
		Contexts: []int{131072, 65536, 32768}, Ratio: 4}
	o.Mapping = topology.Gather // projections cut, as in the paper's decode mapping
	p, err := RunPlan(m, o)
	if err != nil {
		t.Fatal(err)
	}
	if p.TokenBytes != 61*576*2 {
		t.Errorf("%d cache bytes a token", p.TokenBytes)
	}
	for i, want := range [][2]int{{16, 64}, {32, 128}, {64, 256}} {
		if r := p.Rows[i]; r.Full.Batch != want[0] || r.SnapStream.Batch != want[1] || r.Full.Most < want[0] {
			t.Errorf("%d tokens: batch %d and %d, want %v (%d bytes free, %d and %d a sequence)",
				r.Context, r.Full.Batch, r.SnapStream.Batch, want, p.CacheBytes, r.Full.Bytes, r.SnapStream.Bytes)
		}
	}
	o.Mapping = topology.Reduce // attention weights whole on every socket
	whole, err := RunPlan(m, o)
	if err != nil || whole.WeightBytes < p.WeightBytes+10e9 || whole.Rows[0].SnapStream.Most >= p.Rows[0].SnapStream.Most {
		t.Errorf("reduce: %+v, %v", whole, err)
	}
	o.Mapping, o.Memory = topology.Gather, 40e9
	if p, err := RunPlan(m, o); err != nil || p.CacheBytes >= 0 || p.Rows[0].SnapStream.Most != 0 {
		t.Errorf("40 GB: %+v, %v", p, err)
	}
	o.Contexts = []int{1 << 20}
	if _, err := RunPlan(m, o); err == nil {
		t.Error("a context beyond the model's was planned")
	}
}

// TestPlanCut: a full cache that fits no node fits cut over all nodes, if each computes at least one of its KV heads.
// Latent attention and policies that evict are not cut.
func TestPlanCut(t *testing.T) {
	row := func(name string, nodes, context int, memory int64) PlanRow {
		t.Helper()
		m, err := PlanShape(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := RunPlan(m, PlanOptions{Sockets: nodes, Memory: memory, Weights: tensor.Q8_0, KV: tensor.BF16, Rows: 512,
			Contexts: []int{context}, Ratio: 2, Mapping: topology.Gather})
		if err != nil {
			t.Fatal(err)
		}
		if r := p.Rows[0]; r.Full.Cut*int(r.Full.Bytes) > nodes*int(p.CacheBytes) {
			t.Errorf("%s: %d sequences of %d bytes in %d", name, r.Full.Cut, r.Full.Bytes, nodes*int(p.CacheBytes))
		}
		return p.Rows[0]
	}
	for _, c := range []struct {
		nodes  int
		memory int64
		most   int // caches that fit nodes
		cut    int
	}{{8, 42e9, 0, 5}, {4, 52e9, 0, 2}, {2, 72e9, 0, 1}, {1, 113e9, 0, 0}, {8, 16e9, 0, 0}, {8, 57e9, 8, 0}, {16, 38e9, 0, 5}} {
		r := row("llama-3.1-70b", c.nodes, 131072, c.memory)
		if r.Full.Cut != c.cut || r.Full.Most != c.most || r.SnapStream.Cut != 0 {
			t.Errorf("%d nodes: %+v, want %d cut", c.nodes, r, c.cut)
		}
	}
	if r := row("deepseek-r1", 16, 131072, 54e9); r.Full.Most+r.Full.Cut > 0 {
		t.Errorf("latent attention is not cut: %+v", r)
	}
}

// TestDefaultContexts: no context is longer than the model's maximum.
func TestDefaultContexts(t *testing.T) {
	for _, c := range []struct {
		most, least int
		want        []int
	}{{1 << 20, 64, []int{131072, 65536, 32768}}, {131072, 64, []int{131072, 65536, 32768}},
		{40960, 64, []int{40960, 20480, 10240}}, {200, 64, []int{200, 100}}, {32, 64, nil}, {0, 0, nil}} {
		if got := DefaultContexts(c.most, c.least); !slices.Equal(got, c.want) {
			t.Errorf("%d, %d: %v, want %v", c.most, c.least, got, c.want)
		}
	}
}

// Every named shape can be planned and has the parameter count of its name.
func TestPlanShapes(t *testing.T) {
	for name, billions := range map[string]float64{"llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "qwen2.5-7b": 7.62,
		"mistral-7b-v0.1": 7.24, "gemma-3-27b": 27.01, "deepseek-r1": 671.03, "deepseek-v2-lite": 15.71, "qwen3-30b-a3b": 30.53,
		"qwen3-0.6b": 0.60, "gemma-3-1b": 1.00, "llama-3.2-1b": 1.24, "qwen3-1.7b": 1.72, "llama-3.2-3b": 3.21,
		"gemma-3-4b": 3.88, "qwen3-4b": 4.02,
		"qwen3-8b": 8.19, "gemma-3-12b": 11.77, "phi-4": 14.66, "qwen3-14b": 14.77, "qwen3-32b": 32.76,
		"mixtral-8x7b": 46.70, "qwen3.5-9b": 8.95, "qwen3.5-35b-a3b": 34.66, "qwen3-next-80b-a3b": 79.67,
		"gemma-4-e2b": 4.63, "gemma-4-e4b": 7.46, "gemma-4-26b-a4b": 25.23, "gemma-4-31b": 30.70} {
		m, err := PlanShape(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(m.Parameters) / 1e9; got < billions-0.01 || got > billions+0.01 {
			t.Errorf("%s has %.3f billion parameters, want %v", name, got, billions)
		}
		if !strings.Contains(strings.Join(PlanShapes(), " "), name) {
			t.Errorf("%s is not listed", name)
		}
		if _, err := RunPlan(m, PlanOptions{Sockets: 4, Memory: 64e9, Weights: tensor.Q8_0, KV: tensor.BF16,
			Mapping: topology.Gather, Rows: 512, Ratio: 4}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := PlanShape("gpt-5"); err == nil || !strings.Contains(err.Error(), "deepseek-r1") {
		t.Errorf("an unknown name: %v", err)
	}
}
