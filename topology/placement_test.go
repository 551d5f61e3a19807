package topology

import (
	"testing"

	"pgregory.net/rapid"
)

func testShape() Shape {
	return Shape{Hidden: 384, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024, Vocab: 4096,
		FFNUnits: 16, FFNUnitStart: func(u int) int { return u * 64 }}
}

func TestPlaceCoversEveryAxisOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "n")
		var members []Member
		for i := range n {
			members = append(members, Member{ID: string(rune('a' + i)), Share: rapid.Float64Range(0.01, 8).Draw(t, "share")})
		}
		s := testShape()
		p, err := Place(1, Gather, s, members)
		if err != nil {
			t.Fatal(err)
		}
		axes := map[string]func(Slice) (Range, int){
			"q": func(x Slice) (Range, int) { return x.Q, 512 }, "k": func(x Slice) (Range, int) { return x.K, 256 },
			"out": func(x Slice) (Range, int) { return x.Out, 384 }, "ffn": func(x Slice) (Range, int) { return x.FFN, 1024 },
			"vocab": func(x Slice) (Range, int) { return x.Vocab, 4096 }, "kv": func(x Slice) (Range, int) { return x.KVHeads, 8 },
		}
		for name, get := range axes {
			at := 0
			for _, sl := range p.Slices {
				r, total := get(sl)
				if r.Lo != at || r.Hi < r.Lo {
					t.Fatalf("%s: rank %d owns [%d,%d), want to start at %d", name, sl.Rank, r.Lo, r.Hi, at)
				}
				at = r.Hi
				if sl.Rank == n-1 && at != total {
					t.Fatalf("%s: covered %d of %d", name, at, total)
				}
			}
		}
	})
}

func TestPlaceRefusesBadShares(t *testing.T) {
	if _, err := Place(1, Gather, testShape(), nil); err != ErrNoMembers {
		t.Fatalf("got %v", err)
	}
	if _, err := Place(1, Gather, testShape(), []Member{{ID: "x", Share: -1}}); err == nil {
		t.Fatal("a negative share was accepted")
	}
	if _, err := ParseMapping("ring"); err == nil {
		t.Fatal("an unknown mapping was accepted")
	}
}

func TestCutFollowsShares(t *testing.T) {
	got := Apportion(16, []float64{3, 1})
	if got[0].Len() != 12 || got[1].Len() != 4 {
		t.Fatalf("got %v", got)
	}
}
