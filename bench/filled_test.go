package bench

import (
	"testing"
	"time"

	"shoal/kvcache"
	"shoal/model"
	"shoal/tensor"
)

// TestHeldIsWhatFits: sequences are opened for real until the arena refuses one.
func TestHeldIsWhatFits(t *testing.T) {
	ck, err := model.Random("fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	g := Geometry(&ck.Config, tensor.BF16)
	const prompt, output = 512, 100
	for _, spec := range []string{"full", "streaming:sink=4,recent=124", "snapstream:sink=4,recent=60,topk=64,obs=16"} {
		p, err := kvcache.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		const memory = 20 << 20
		a, n := kvcache.NewArena(memory), 0
		for ; ; n++ {
			reading := kvcache.HandoverBytes(g, g.KVHeads, prompt, p) + kvcache.EvidenceBytes(g, g.KVHeads, prompt, p)
			resident := kvcache.ResidentBytes(g, prompt, prompt+output-1, p)
			if a.Charge(max(reading, resident)) != nil {
				break
			}
			a.Uncharge(max(reading, resident) - resident)
		}
		if got := Held(g, p, prompt, output, memory); got != n || n < 2 {
			t.Errorf("%s: %d sequences are said to fit, %d do", spec, got, n)
		}
		a.Close()
	}
	if Held(g, kvcache.Full{}, prompt, output, 1000) != 0 {
		t.Error("a sequence fits 1000 bytes")
	}
}

func TestBestRate(t *testing.T) {
	var at []time.Duration
	for i := range 40 { // slow, then ten times as fast, then slow
		d := 100 * time.Millisecond
		if i >= 10 && i < 30 {
			d = 10 * time.Millisecond
		}
		at = append(at, d)
		if i > 0 {
			at[i] += at[i-1]
		}
	}
	if r := bestRate(at, 10); r < 99 || r > 101 {
		t.Errorf("%.1f tokens/s, want 100", r)
	}
	if r := bestRate(nil, 10); r != 0 {
		t.Error(r)
	}
}
