package models

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// toyFit returns a fit of a model with 16 GiB in bf16 that can be split into 8 parts. Its cache has
// 128 KiB per token.
func toyFit(local, total int, limit, caches int64) *fit {
	return &fit{Capacity: Capacity{Local: local, Total: total, Limit: limit, From: "this container", Caches: caches}, context: 131072,
		held: func(dt tensor.DType, nodes int) (bench.NodeMemory, error) {
			if nodes > 8 {
				return bench.NodeMemory{}, errors.New("cannot be cut further")
			}
			bits := map[tensor.DType]int64{tensor.F32: 256, tensor.BF16: 128, tensor.F16: 128, tensor.Q8_0: 68, tensor.Q4_0: 36}[dt] // of 8 weights
			return bench.NodeMemory{Weights: bits << 27 / int64(nodes), Embedding: 1 << 29, Workspace: 1 << 28}, nil
		},
		cacheOf: func(tokens int) int64 { return int64(tokens) << 17 }}
}

// TestFit checks the type that is chosen for a memory, and the alternatives in an error.
func TestFit(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name                 string
		local, total         int
		limit, caches        int64
		stored, auto         tensor.DType // auto: choice of --quant auto; F32 if nothing fits
		fits                 bool         // whether the stored type fits
		wants, offers, never []string     // parts of the line of auto; parts in and absent from the error of the stored type
	}{
		{name: "plenty", local: 1, total: 1, limit: 64 * gib, caches: gib, stored: tensor.BF16, auto: tensor.BF16, fits: true,
			wants: []string{"--quant auto: bf16, which takes 21.75 GiB = 16.00 GiB of weights, 256.0 MiB of activations " +
				"and 1.00 GiB of caches, 512.0 MiB of embedding and a margin of 4.00 GiB, of the 64.00 GiB that this container may use"}},
		{name: "f32 is halved first", local: 1, total: 1, limit: 32 * gib, caches: gib, stored: tensor.F32, auto: tensor.BF16,
			wants: []string{"bf16", "f32 would take 35.75 GiB"}, offers: []string{"--quant bf16 takes 19.75 GiB"}},
		{name: "q8_0", local: 1, total: 1, limit: 16 * gib, caches: gib, stored: tensor.BF16, auto: tensor.Q8_0,
			wants: []string{"q8_0", "bf16 would take 18.75 GiB"},
			offers: []string{"takes 18.75 GiB = 16.00 GiB of weights", "--quant q8_0 takes 11.25 GiB",
				"2 machines like this one, with a node each that takes 10.75 GiB (shoal up --cluster NAME --expect 2)"},
			never: []string{"--kv-memory"}},
		{name: "4 bits", local: 1, total: 1, limit: 8 * gib, caches: gib, stored: tensor.BF16, auto: tensor.Q4_0,
			wants: []string{"q4_0", "; q8_0 would take"}, offers: []string{"--quant q4_0", "3 machines"}},
		{name: "caches are the reason", local: 1, total: 1, limit: 20 * gib, caches: 8 * gib, stored: tensor.BF16, auto: tensor.Q8_0,
			offers: []string{"--kv-memory 2048MiB --max-context 16384", "--quant q8_0", "2 machines"}},
		{name: "several nodes share a machine", local: 4, total: 4, limit: 16 * gib, caches: gib, stored: tensor.BF16, auto: tensor.Q8_0,
			offers: []string{"4 times 4.00 GiB of weights"}},
		{name: "machines that join later", local: 1, total: 4, limit: 8 * gib, caches: gib, stored: tensor.BF16, auto: tensor.BF16, fits: true},
		{name: "not even with 4 bits", local: 1, total: 1, limit: 4 * gib, caches: gib, stored: tensor.BF16,
			offers: []string{"8 machines"}, never: []string{"--quant q"}},
		{name: "nothing fits", local: 1, total: 1, limit: gib, caches: gib / 2, stored: tensor.BF16,
			offers: []string{"nothing on machines of this size"}, never: []string{"--quant q", "machines like"}},
		{name: "unknown memory", local: 1, total: 1, limit: 0, caches: gib, stored: tensor.BF16,
			auto: tensor.BF16, fits: true, wants: []string{"as stored"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := toyFit(c.local, c.total, c.limit, c.caches)
			got, line, err := f.Choose(c.stored)
			if got != c.auto || (err != nil) != (c.auto == tensor.F32) {
				t.Errorf("auto chooses %s (%q, %v), want %s", got, line, err, c.auto)
			}
			for _, s := range c.wants {
				if !strings.Contains(line, s) {
					t.Errorf("the line %q lacks %q", line, s)
				}
			}
			if strings.Contains(line, "\n") {
				t.Errorf("%q is more than one line", line)
			}
			err = f.Check(c.stored)
			if (err == nil) != c.fits {
				t.Fatalf("as stored: %v", err)
			}
			for _, s := range c.offers {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v\nlacks %q", err, s)
				}
			}
			for _, s := range c.never {
				if strings.Contains(err.Error(), s) {
					t.Errorf("%v\noffers %q", err, s)
				}
			}
		})
	}
}

// TestOffersFit checks that every alternative in an error fits.
func TestOffersFit(t *testing.T) {
	for limit := int64(1 << 30); limit < 40<<30; limit += 777 << 20 {
		f := toyFit(1, 1, limit, 2<<30)
		if machines, _ := f.machinesNeeded(tensor.BF16); machines > 0 {
			if ok, n, err := f.fits(tensor.BF16, 1, machines); !ok || err != nil {
				t.Errorf("of %d: %d machines take %d: %v", limit, machines, n.sum(), err)
			}
			if ok, _, _ := f.fits(tensor.BF16, 1, machines-1); ok && machines > 2 {
				t.Errorf("of %d: %d machines are enough", limit, machines-1)
			}
		}
		n, err := f.needs(tensor.BF16, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if tokens, caches := f.shorterContext(n); tokens > 0 {
			less := *f
			less.Caches = caches
			if ok, _, _ := less.fits(tensor.BF16, 1, 1); !ok || f.cacheOf(tokens) > caches {
				t.Errorf("of %d: a context of %d does not fit", limit, tokens)
			}
		}
	}
}

// TestFitIsPlan checks that the numbers equal those of shoal plan.
func TestFitIsPlan(t *testing.T) {
	m, err := bench.PlanShape(bench.PlanShapes()[0])
	if err != nil {
		t.Fatal(err)
	}
	serve := cluster.ServeConfig{KV: "bf16", Policy: "full", Mapping: "auto", StepTokens: 512, MaxContext: m.Config.MaxPositions}
	f, err := FitOf(m, &serve, Capacity{Local: 1, Total: 2, Limit: 1 << 40, Caches: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	for _, dt := range quantCandidates(tensor.BF16) {
		p, err := bench.RunPlan(m,
			bench.PlanOptions{Sockets: 2, Memory: 1 << 40, Weights: dt, KV: tensor.BF16, Mapping: "gather", Rows: 512, Ratio: 4})
		if err != nil {
			t.Fatal(err)
		}
		n, err := f.needs(dt, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		if n.weights+n.workspace+n.embedding != p.WeightBytes+p.WorkspaceBytes+p.EmbeddingBytes ||
			f.cacheOf(p.Rows[0].Context) != p.Rows[0].Full.Bytes {
			t.Errorf("%s: %+v, plan has %+v", dt, n, p)
		}
	}
}

// TestFitCountsAdapters: the memory for LoRA adapters of every node counts, and the text names it.
func TestFitCountsAdapters(t *testing.T) {
	const gib = 1 << 30
	f := toyFit(2, 2, 32*gib, gib)
	f.Adapters = 6 * gib
	got, line, err := f.Choose(tensor.BF16)
	if err != nil || got != tensor.Q8_0 || !strings.Contains(line, ", 6.00 GiB of LoRA adapters and 1.00 GiB of caches") {
		t.Errorf("%s: %q, %v", got, line, err)
	}
	if f.Adapters = 0; f.Check(tensor.BF16) != nil {
		t.Error("without adapters bf16 does not fit")
	}
	if held := f.Held(tensor.Q8_0); held != 2*(17<<29/2)+2*(1<<28)+1<<29 {
		t.Errorf("%d bytes are held", held)
	}
}
