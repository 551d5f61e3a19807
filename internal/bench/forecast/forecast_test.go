package forecast_test

import (
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/bench/forecast"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/topology"
)

func work(t *testing.T, shape string, mapping topology.Mapping) forecast.Work {
	t.Helper()
	ck, err := checkpoint.Random(shape)
	if err != nil {
		t.Fatal(err)
	}
	return forecast.WorkOf(&ck.Config, tensor.Q8_0, tensor.BF16, mapping)
}

var rates = costs.Rates{Read: 50e9, Products: 330e9}

// machine is a node with these rates.
func machine(w forecast.Work) forecast.Machine {
	m := forecast.Machine{Table: rates.Assumed(w.Weight(), w.Slot()), Step: 0.7e-3}
	m.Exchange, m.Message = 40e-6, 5e-6
	return m
}

// TestSentBytes compares the kB that all nodes send per token with a report of `shoal lab cluster -m
// bench160m --quant q8_0` (2026-11-28).
func TestSentBytes(t *testing.T) {
	for _, c := range []struct {
		shape        string
		mapping      topology.Mapping
		nodes, batch int
		measured     float64
	}{
		{"bench160m", topology.Gather, 2, 1, 208.6}, {"bench160m", topology.Gather, 2, 4, 206.2},
		{"bench160m", topology.Gather, 4, 1, 236.7}, {"bench160m", topology.Gather, 4, 4, 232.8},
		{"bench160m", topology.Reduce, 2, 1, 72.4}, {"bench160m", topology.Reduce, 2, 4, 71.9},
		{"bench160m", topology.Reduce, 4, 1, 171.7}, {"bench160m", topology.Reduce, 4, 4, 171.5},
		{"mla-1b", topology.Gather, 2, 1, 620.6}, {"mla-1b", topology.Gather, 4, 1, 728.2},
		{"mla-1b", topology.Reduce, 2, 1, 324.6}, {"mla-1b", topology.Reduce, 4, 1, 341.9},
		{"moe-1b", topology.Gather, 2, 1, 264.5}, {"moe-1b", topology.Gather, 4, 1, 283.3}, {"moe-1b", topology.Reduce, 2, 1, 198.1},
	} {
		w := work(t, c.shape, c.mapping)
		got := w.Decode(forecast.Cluster{Nodes: c.nodes, Machine: machine(w)}, c.batch, 64)
		kB := got.Sent / float64(c.batch) / 1e3
		if math.Abs(kB/c.measured-1) > 0.001 {
			t.Errorf("%s %s, %d nodes, batch %d: %.1f kB a token, measured %.1f; %d exchanges, %.0f messages",
				c.shape, c.mapping, c.nodes, c.batch, kB, c.measured, got.Syncs, got.Messages)
		}
	}
}

// TestSentBytesOfPrompts compares the kB that all nodes send with a report of `shoal lab cluster -m bench160m
// --quant q8_0 --mapping reduce --prompt 256 --chunk 256` (2026-11-28).
func TestSentBytesOfPrompts(t *testing.T) {
	for nodes, measured := range map[int]float64{2: 26674.3, 4: 54445.8} {
		w := work(t, "bench160m", topology.Reduce)
		got := w.Prompt(forecast.Cluster{Nodes: nodes, Machine: machine(w)}, 256, 256).Sent / 1e3
		if math.Abs(got/measured-1) > 0.03 {
			t.Errorf("%d nodes: %.1f kB, measured %.1f", nodes, got, measured)
		}
	}
}

// TestDelayAndRate: each exchange takes the delay of the link once, and a slow link takes the time of
// the bytes that a node receives.
func TestDelayAndRate(t *testing.T) {
	for _, mapping := range []topology.Mapping{topology.Gather, topology.Reduce} {
		w := work(t, "bench160m", mapping)
		near := w.Decode(forecast.Cluster{Nodes: 4, Machine: machine(w)}, 4, 64)
		far := w.Decode(forecast.Cluster{Nodes: 4, Machine: machine(w), Link: forecast.Link{Delay: 1e-3}}, 4, 64)
		if want := near.Step + float64(near.Syncs+2)*1e-3; math.Abs(far.Step/want-1) > 1e-6 {
			t.Errorf("%s: a delay of 1 ms gives a step of %.4f s, want %.4f", mapping, far.Step, want)
		}
		slow := w.Decode(forecast.Cluster{Nodes: 4, Machine: machine(w), Link: forecast.Link{Rate: 1e6}}, 4, 64)
		if least, most := near.Sent*3/4/1e6/4, near.Sent*3/1e6; slow.Step < least || slow.Step > most {
			t.Errorf("%s: %.0f bytes at 1 MB/s take %.3f s, want %.3f to %.3f", mapping, near.Sent, slow.Step, least, most)
		}
	}
}

// TestPasses: the coordinator's time is divided among the passes of a plan, of which 50 ms have room.
func TestPasses(t *testing.T) {
	w := work(t, "bench160m", topology.Reduce)
	c := forecast.Cluster{Nodes: 2, Machine: machine(w), Passes: 8}
	if got := w.Decode(c, 1, 64); math.Abs(got.Control-c.Machine.Step/8) > 1e-9 {
		t.Errorf("a short step: the coordinator takes %g s of each pass", got.Control)
	}
	c.Link.Delay = 0.5e-3 // a step takes 12.5 ms more
	slow := w.Decode(c, 1, 64)
	passes := math.Floor(50e-3 / (slow.Compute + slow.Wait - 0.6e-3))
	if want := (c.Machine.Step + 2*c.Link.Delay) / passes; passes > 4 || math.Abs(slow.Control-want) > 1e-9 {
		t.Errorf("%.0f passes: the coordinator takes %g s, want %g", passes, slow.Control, want)
	}
	c.Passes = 0
	if one := w.Decode(c, 1, 64); one.Syncs != slow.Syncs-1 || math.Abs(one.Control-c.Machine.Step-2*c.Link.Delay) > 1e-9 {
		t.Errorf("one pass: %d exchanges, the coordinator takes %g s; of several: %d", one.Syncs, one.Control, slow.Syncs)
	}
}

// TestReadBound: one sequence on one node takes the time to read all weights.
func TestReadBound(t *testing.T) {
	ck, err := checkpoint.Random("llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	w := forecast.WorkOf(&ck.Config, tensor.Q8_0, tensor.BF16, topology.Gather)
	costs := bench.CostsOf(&ck.Config, tensor.Q8_0, tensor.BF16)
	got := w.Decode(forecast.Cluster{Nodes: 1, Machine: machine(w)}, 1, 1000)
	bytes, _, _ := costs.Decode(1, 1000, 0)
	if want := bytes / rates.Read; math.Abs(got.Compute/want-1) > 0.02 || got.Syncs != 0 && got.Wait > 1e-9 {
		t.Errorf("compute %.4f s, wait %g; reading takes %.4f s", got.Compute, got.Wait, want)
	}
	mat, attention := costs.Prefill(2048)
	prompt := w.Prompt(forecast.Cluster{Nodes: 1, Machine: machine(w)}, 2048, 512)
	if want := (mat + attention) / 2 / rates.Products; math.Abs(prompt.Compute/want-1) > 0.05 {
		t.Errorf("a prompt computes %.3f s; its arithmetic takes %.3f s", prompt.Compute, want)
	}
}

// TestScale: doubling the nodes halves the reading while there are panels for all, the wait grows
// with the nodes, and noise makes all wait for the slowest.
func TestScale(t *testing.T) {
	w := work(t, "llama-3.1-8b", topology.Gather)
	c := forecast.Cluster{Machine: machine(w), Link: forecast.Link{Delay: 50e-6, Rate: 1.25e9}}
	points := w.Scale(c, []int{1, 2, 4, 8, 64, 256}, 1, 100)
	for i := 1; i < 4; i++ {
		if ratio := points[i-1].Compute / points[i].Compute; ratio < 1.9 || ratio > 2.1 {
			t.Errorf("%d nodes compute %.2f times as fast as %d", points[i].Nodes, ratio, points[i-1].Nodes)
		}
	}
	if big := points[5]; big.Wait < 3*points[4].Wait || big.Compute > points[4].Compute || big.Limits[0].Name != "software of messages" {
		t.Errorf("256 nodes: %+v; 64: %+v", big, points[4])
	}
	if first := points[0]; first.Limits[0].Name != "reading and multiplying" || first.Limits[0].Share < 0.9 {
		t.Errorf("one node: %+v", first.Limits)
	}
	c.Machine.Noise = 0.3
	if noisy := w.Scale(c, []int{8}, 1, 100)[0]; noisy.Step < 1.03*points[3].Step {
		t.Errorf("with noise %.4f s, without %.4f", noisy.Step, points[3].Step)
	}
}

// TestUnitsLimitReduce: an axis has 16 units, so more ranks than that have no part of the FFN's sums,
// and the FFN takes as long on 64 ranks as on 16.
func TestUnitsLimitReduce(t *testing.T) {
	w := work(t, "llama-3.1-8b", topology.Reduce)
	compute := func(n int) float64 { return w.Decode(forecast.Cluster{Nodes: n, Machine: machine(w)}, 1, 100).Compute }
	if a, b, c := compute(8), compute(16), compute(64); a < 1.1*b || c < 0.9*b {
		t.Errorf("8, 16 and 64 ranks compute %.4f, %.4f, %.4f s", a, b, c)
	}
}

// TestFreeComputation: a step whose computations cost nothing takes no longer than one whose computations cost next to
// nothing. Both share the coordinator's time between the most passes of a plan.
func TestFreeComputation(t *testing.T) {
	w := work(t, "bench160m", topology.Gather)
	c := forecast.ClusterOf(1, []costs.Table{machine(w).Table})
	step := func(times float64) float64 {
		c.Machine.Table = machine(w).Times(times)
		return w.Decode(c, 1, 64).Step
	}
	if free, small := step(0), step(1e-9); !(free > 0) || free > small {
		t.Errorf("without cost %v s, with next to none %v s", free, small)
	}
}
