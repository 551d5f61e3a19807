package draft

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
)

// rowsKept is a backend that records which rows of a batch it keeps.
type rowsKept struct {
	layer.Backend
	rows []int
}

func (b *rowsKept) Keep(to layer.States, _ layer.Held, rows []int) {
	b.rows = append(b.rows, rows...)
	s := to.(*layer.HostStates)
	for _, r := range rows {
		s.Rows = append(s.Rows, float32(r))
	}
}

// TestQueue checks that each queued row has its hidden state and the token after it, and that only
// the newest rows of a long prompt are queued.
func TestQueue(t *testing.T) {
	prompt := make([]int32, maxQueued+10)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	d := &State{mtp: true, hidden: &layer.HostStates{Hidden: 1}}
	b := &rowsKept{}
	check := func(tokens []int32, rows ...int) {
		t.Helper()
		if !slices.Equal(d.tokens, tokens) || !slices.Equal(b.rows, rows) || d.hidden.Len() != len(tokens) {
			t.Errorf("tokens %v, rows %v, %d states; want %v, %v", d.tokens, b.rows, d.hidden.Len(), tokens, rows)
		}
		b.rows = nil
	}
	d.Queue(b, nil, []int32{5, 6, 7}, 2, 8)
	check([]int32{6, 7, 8}, 2, 3, 4)
	d.Queue(b, nil, []int32{8}, 1, 9)
	check([]int32{6, 7, 8, 9}, 1)
	d.Queue(b, nil, prompt, 100, 500)
	var rows []int
	for i := range maxQueued {
		rows = append(rows, 110+i)
	}
	check(append(slices.Clone(prompt[11:]), 500), rows...)
	if d.Skip(); len(d.tokens) > 0 || d.hidden.Len() > 0 {
		t.Errorf("%d tokens and %d states are left after a gap", len(d.tokens), d.hidden.Len())
	}
}
