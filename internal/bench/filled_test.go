package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	kvmemory "github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestHeldIsTheMaximum opens sequences until the arena refuses one.
func TestHeldIsTheMaximum(t *testing.T) {
	ck, err := checkpoint.Random("fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	g := shard.GeometryOf(&ck.Config, tensor.BF16)
	const prompt, output = 512, 100
	for _, spec := range []string{"full", "streaming:sink=4,recent=124", "snapstream:sink=4,recent=60,topk=64,obs=16"} {
		p, err := kvpolicy.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		const memory = 20 << 20
		a, n := kvmemory.NewArena(memory), 0
		for ; ; n++ {
			reading := kvcache.HandoverBytes(g, g.KVHeads, prompt, p) + kvcache.StatisticsBytes(g, g.KVHeads, prompt, p)
			resident := kvcache.ResidentBytes(g, prompt, prompt+output-1, p)
			if a.Charge(max(reading, resident)) != nil {
				break
			}
			a.Uncharge(max(reading, resident) - resident)
		}
		if got := Held(g, p, prompt, output, 0, memory); got != n || n < 2 {
			t.Errorf("%s: %d sequences should fit, %d do", spec, got, n)
		}
		a.Close()
	}
	if Held(g, kvcache.Full(), prompt, output, 0, 1000) != 0 {
		t.Error("a sequence fits 1000 bytes")
	}
}

// TestRates: three sequences decode in steps of 100 ms and, for a while, of 10 ms. Then one ends, a
// prompt is read, and two decode fast.
func TestRates(t *testing.T) {
	var tokens []token
	now := time.Duration(0)
	step := func(d time.Duration, seqs ...int) {
		now += d
		for _, s := range seqs {
			tokens = append(tokens, token{s, now})
		}
	}
	for i := range 60 {
		d := 100 * time.Millisecond
		if i >= 10 && i < 25 {
			d = 10 * time.Millisecond
		}
		step(d, 1, 2, 3)
	}
	for range 50 {
		step(time.Millisecond, 1, 2)
	}
	for range 50 {
		step(time.Millisecond, 1, 2, 4)
		step(time.Millisecond, 1, 2)
	}
	slices.Reverse(tokens) // the order does not matter
	best, median := decodeRates(tokens, 3, 10)
	if best < 299 || best > 301 || median < 29 || median > 31 {
		t.Errorf("%.1f and %.1f tokens/s, want 300 and 30", best, median)
	}
	if best, _ := decodeRates(tokens, 5, 10); best != 0 {
		t.Errorf("%.1f tokens/s of five sequences", best)
	}
}
