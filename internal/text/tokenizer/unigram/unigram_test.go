package unigram

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func none(int32) bool { return false }

func model(pieces []Piece, o Options) *Model {
	ids := map[string]int32{}
	for i, p := range pieces {
		ids[p.Text] = int32(i)
	}
	return New(pieces, ids, o)
}

// TestBestCut compares the search with a plain one over all cuts.
func TestBestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfNDistinct(rapid.StringMatching(`[abé]{1,4}`), 1, 12, rapid.ID[string]).Draw(t, "pieces")
		pieces := []Piece{{"<unk>", 0}}
		for _, w := range words {
			pieces = append(pieces, Piece{w, -float64(rapid.IntRange(1, 40).Draw(t, "score")) / 4})
		}
		m := model(pieces, Options{Unk: 0, SentencePiece: rapid.Bool().Draw(t, "float32"), Hidden: func(id int32) bool { return id == 0 }})
		text := rapid.StringMatching(`[abcé]{0,8}`).Draw(t, "text")
		var sum float64
		at := 0
		for _, p := range m.Cut(nil, text, none) {
			if p.Lo != at {
				t.Fatalf("%q: a piece begins at %d, want %d", text, p.Lo, at)
			}
			at = p.Hi
			if !p.Unknown {
				sum += pieces[p.ID].Score
				continue
			}
			for range text[p.Lo:p.Hi] {
				sum += m.unk
			}
		}
		if want := best(m, text); at != len(text) || math.Abs(sum-want) > 1e-4 {
			t.Fatalf("%q: the cut has the score %v and ends at %d, the best has %v", text, sum, at, want)
		}
	})
}

func best(m *Model, text string) float64 {
	if text == "" {
		return 0
	}
	_, ok := m.ids[firstRune(text)]
	top := math.Inf(-1)
	if !ok {
		top = m.unk + best(m, text[len(firstRune(text)):])
	}
	for n := 1; n <= len(text); n++ {
		if id, ok := m.ids[text[:n]]; ok && id != 0 {
			top = max(top, m.pieces[id].Score+best(m, text[n:]))
		}
	}
	return top
}

func firstRune(s string) string { return string([]rune(s)[:1]) }

// TestForced: a user-defined symbol wins against any normal pieces, and a banned piece is not used.
func TestForced(t *testing.T) {
	pieces := []Piece{{"<unk>", 0}, {"a", -1}, {"b", -1}, {"ab", -9}, {"bab", -1}}
	m := model(pieces, Options{Unk: 0, SentencePiece: true, Forced: func(id int32) bool { return id == 3 }})
	got := m.Cut(nil, "abab", none)
	if len(got) != 2 || got[0].ID != 3 || got[1].ID != 3 {
		t.Errorf("abab is cut as %v, want the forced piece twice", got)
	}
	got = m.Cut(nil, "ab", func(id int32) bool { return id == 3 })
	if len(got) != 2 || got[0].ID != 1 || got[1].ID != 2 {
		t.Errorf("ab without its piece is cut as %v", got)
	}
}
