package batcher

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// BenchmarkDecodeStep measures the batcher's work between two decode steps of 32 sequences.
func BenchmarkDecodeStep(b *testing.B) {
	for _, mode := range []speculate.Mode{speculate.Off, speculate.Suffix} {
		b.Run(fmt.Sprintf("speculate=%s", mode), func(b *testing.B) {
			g := kvcache.Geometry{Layers: 16, KVHeads: 8, Group: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}}
			s, err := New(Config{Geometry: g, ContextLimit: 1 << 30, Identity: "bench", Speculate: mode})
			if err != nil {
				b.Fatal(err)
			}
			s.Step(Placed{Epoch: 1, Sockets: []Socket{{ID: "a", Budget: 1 << 50, Heads: tensor.Span{Lo: 0, Hi: 8}}}})
			params, e := sampler.Default(), Effects{}
			for i := range 32 {
				prompt := make([]int32, 128)
				for j := range prompt {
					prompt[j] = int32(i + j)
				}
				if out := s.Step(Submit{Spec: Spec{ID: fmt.Sprint(i), Prompt: prompt, MaxTokens: 1 << 29,
					Sampling: &params, Policy: kvcache.Full(), PromptLogprobs: -1}}); out.Start != nil {
					e = out
				} else if len(out.Rejects) > 0 {
					b.Fatal(out.Rejects)
				}
			}
			step := func(token int32) {
				p := e.Start
				done := StepDone{Epoch: p.Epoch, Step: p.Step, Micros: 1000}
				for i := range p.Decode {
					r := Result{Seq: p.Decode[i].Seq}
					for range p.Decode[i].Tokens {
						r.Samples = append(r.Samples, sampler.Result{Token: token})
					}
					done.Results = append(done.Results, r)
				}
				for i := range p.Chunks {
					if p.Chunks[i].Sample {
						done.Results = append(done.Results, Result{Seq: p.Chunks[i].Seq, Samples: []sampler.Result{{Token: token}}})
					}
				}
				e = s.Step(done)
			}
			for len(e.Start.Decode) < 32 {
				step(7)
			}
			b.ReportAllocs()
			n := int32(0)
			for b.Loop() {
				n = n*5 + 3
				step(n & 1023)
			}
		})
	}
}
