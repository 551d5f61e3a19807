package batcher

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// visit is one request of a trace: the blocks of a shared text at its beginning, and the number of
// its own blocks.
type visit struct {
	text, shared, own int
}

// zipf draws requests over texts of 1 to 32 blocks with Zipf's popularity.
func zipf(rng *rand.Rand, requests, texts int) (trace []visit, blocks int) {
	weights, sum := make([]float64, texts), 0.0
	sizes := make([]int, texts)
	for i := range weights {
		weights[i] = 1 / float64(i+1)
		sum += weights[i]
	}
	for i, at := range rng.Perm(texts) {
		sizes[at] = 1 + i*32/texts
		blocks += sizes[at]
	}
	for range requests {
		x := rng.Float64() * sum
		text := 0
		for ; x > weights[text] && text < texts-1; text++ {
			x -= weights[text]
		}
		trace = append(trace, visit{text, sizes[text], rng.IntN(3)})
	}
	return trace, blocks
}

// page is a block of a cache that is simulated without a batcher.
type page struct {
	before     *page
	after      int
	used, next int // the last request with it, and the next one
}

// hitRate replays a trace with a cache of this number of blocks. It evicts the least valuable block
// without a child.
func hitRate(trace []visit, room int, worth func(p *page) int) float64 {
	arrivals := make([][]int, len(trace)) // requests of each text
	for i, v := range trace {
		arrivals[v.text] = append(arrivals[v.text], i)
	}
	type name struct{ text, own, at int }
	held, hits, all := map[name]*page{}, 0, 0
	for i, v := range trace {
		arrivals[v.text] = arrivals[v.text][1:]
		next := math.MaxInt
		if len(arrivals[v.text]) > 0 {
			next = arrivals[v.text][0]
		}
		var last *page
		found := true
		for at := range v.shared + v.own {
			n := name{v.text, 0, at}
			if at >= v.shared {
				n, next = name{v.text, i + 1, at}, math.MaxInt
			}
			p := held[n]
			if all++; p != nil && found {
				hits++
			} else if found = false; p == nil {
				for len(held) >= room {
					var least name
					var worst *page
					for n, q := range held {
						if q.after == 0 && q.used < i && (worst == nil || worth(q) < worth(worst)) {
							least, worst = n, q
						}
					}
					delete(held, least)
					if worst.before != nil {
						worst.before.after--
					}
				}
				p = &page{before: last}
				held[n] = p
				if last != nil {
					last.after++
				}
			}
			p.used, p.next, last = i, next, p
		}
	}
	return float64(hits) / float64(all)
}

// TestZipf runs 1000 requests over 40 texts, with memory for a tenth of them. The hit rate must be
// above that of LRU and below that of an oracle.
func TestZipf(t *testing.T) {
	trace, blocks := zipf(rand.New(rand.NewPCG(40, 1000)), 1000, 40)
	room := blocks / 10
	lru := hitRate(trace, room, func(p *page) int { return p.used })
	oracle := hitRate(trace, room, func(p *page) int { return -p.next })

	s := testState(t, func(c *Config) { c.ContextLimit, c.TokenBudget, c.Chunk = 4000, 512, 256 })
	one, _ := kvcache.SegmentBytes(geometry, geometry.KVHeads)
	e := s.Step(Placed{Epoch: 1, Sockets: []Socket{{ID: "n", Budget: one * int64(room+1), Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}}}})
	for i, v := range trace {
		spec := Spec{ID: fmt.Sprint("r", i), MaxTokens: 1, Sampling: greedy, Policy: kvcache.Full(), PromptLogprobs: -1}
		spec.Prompt = begin(prompt(fmt.Sprint("text ", v.text), (v.shared+v.own)*tensor.BlockSlots+1), spec.ID, v.shared*tensor.BlockSlots)
		if e = s.Step(Submit{spec}); len(e.Rejects) > 0 {
			t.Fatalf("%+v", e.Rejects)
		}
		for e.Start != nil {
			d := StepDone{Epoch: 1, Step: e.Start.Step}
			for _, c := range e.Start.Chunks {
				d.Results = append(d.Results, Result{Seq: c.Seq, Samples: []sampler.Result{{Token: 9}}})
			}
			e = s.Step(d)
			checkLedger(t, s)
		}
	}
	ours := float64(s.prefix.tree.Totals.Hits) / float64(s.prefix.tree.Totals.Queries)
	t.Logf("%d requests, room for %d of %d blocks: %.1f %% of the tokens found; least recently used %.1f %%, oracle %.1f %%",
		len(trace), room, blocks, 100*ours, 100*lru, 100*oracle)
	if ours < lru || ours > oracle {
		t.Errorf("%.3f of the tokens were found; least recently used finds %.3f, an oracle %.3f", ours, lru, oracle)
	}
}
