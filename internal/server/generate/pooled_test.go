package generate

import (
	"slices"
	"testing"
)

// TestCutText: a text is cut before the tokens that the tokenizer adds at its end.
func TestCutText(t *testing.T) {
	for _, c := range []struct {
		ids, ends []int32
		most      int
		want      []int32
	}{
		{[]int32{1, 5, 6, 7, 2}, []int32{1, 2}, 4, []int32{1, 5, 6, 2}},
		{[]int32{5, 6, 7, 2}, []int32{2}, 2, []int32{5, 2}},
		{[]int32{1, 5, 6, 7}, []int32{1}, 2, []int32{1, 5}},
		{[]int32{5, 6, 7}, nil, 2, []int32{5, 6}},
		{[]int32{5, 6, 2, 3}, []int32{2, 3}, 2, []int32{5, 6}}, // no room for them and a token
		{[]int32{1, 1, 2}, []int32{1, 2}, 2, []int32{1, 2}},
	} {
		before := slices.Clone(c.ids)
		if got := cutText(c.ids, c.ends, c.most); !slices.Equal(got, c.want) || !slices.Equal(c.ids, before) {
			t.Errorf("%v with ends %v, cut to %d: %v, want %v", c.ids, c.ends, c.most, got, c.want)
		}
	}
}
