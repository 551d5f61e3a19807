package kvcache

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naiveStreaming is listings 1 and 2: concatenate sink and recent, and shift.
type naiveStreaming struct {
	sink, recent int
	cache        []int32
}

func (n *naiveStreaming) prefill(length int) {
	n.cache = nil
	for pos := range length {
		n.append(int32(pos))
	}
}

func (n *naiveStreaming) append(pos int32) {
	if len(n.cache) < n.sink+n.recent {
		n.cache = append(n.cache, pos)
		return
	}
	n.cache = slices.Concat(n.cache[:n.sink], n.cache[n.sink+1:], []int32{pos})
}

func TestStreamingEqualsTheNaiveCache(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ring := Ring{Sink: rapid.IntRange(0, 9).Draw(r, "sink"), Recent: rapid.IntRange(1, 40).Draw(r, "recent")}
		s := Streaming(ring.Sink, ring.Recent)
		prompt := rapid.IntRange(1, 120).Draw(r, "prompt")
		naive := naiveStreaming{sink: ring.Sink, recent: ring.Recent}
		naive.prefill(prompt)
		kept := s.Keep(&Statistics{Prompt: prompt}).Positions
		h := &Head{Prompt: prompt}
		for pos := prompt; pos < prompt+100; pos++ {
			sorted := slices.Sorted(slices.Values(kept))
			if !slices.Equal(sorted, naive.cache) || len(kept) != s.Slots(prompt, pos) {
				r.Fatalf("at %d tokens: kept %v (%d slots), naive %v", pos, kept, s.Slots(prompt, pos), naive.cache)
			}
			if !slices.Equal(kept[:min(ring.Sink, pos)], naive.cache[:min(s.Sink, pos)]) {
				r.Fatalf("at %d tokens the sink is %v", pos, kept[:s.Sink])
			}
			slot := s.Slot(h, pos)
			if slot == len(kept) {
				kept = append(kept, 0)
			}
			kept[slot] = int32(pos)
			naive.append(int32(pos))
		}
	})
}

// Figure 4 of SnapStream: sink 1, recent 4, last token 26. The ring holds [25 26 23 24] and token
// 27 replaces 23.
func TestStreamingFigure4(t *testing.T) {
	s := Streaming(1, 4)
	if got := s.Keep(&Statistics{Prompt: 27}).Positions; !slices.Equal(got, []int32{0, 25, 26, 23, 24}) {
		t.Errorf("kept %v", got)
	}
	if got := s.Slot(nil, 27); got != 3 {
		t.Errorf("token 27 goes to slot %d", got)
	}
}

// A run takes the slots that its tokens take one by one.
func TestRunsAreWrites(t *testing.T) {
	for _, p := range []*Policy{Streaming(4, 9), Streaming(0, 1),
		parse("snapstream:sink=3,recent=7,topk=5,obs=4,pool=1"), windowed.Rule(0, Full())} {
		for pos := range 300 {
			for m := 1; m < 20; m++ {
				slot, n := p.runs.Run(pos, m)
				if n < 1 || n > m {
					t.Fatalf("%s: a run of %d from %d has %d tokens", p.Spec(), m, pos, n)
				}
				for i := range n {
					if want := p.Slot(&Head{}, pos+i); slot+i != want {
						t.Fatalf("%s: position %d goes to slot %d, Slot is %d", p.Spec(), pos+i, slot+i, want)
					}
				}
			}
		}
	}
}
