package collective

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// TestRanksIn: RanksIn parses the text of Error, also inside the text of another error.
func TestRanksIn(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []int
		ok   bool
	}{
		{&OpError{Op: Op(0, 37), Kind: KindAllGather, Ranks: []int{1, 12}, Err: ErrPeerTimeout}, []int{1, 12}, true},
		{&OpError{Op: Op(1, 2), Ranks: []int{3}, Err: ErrProtocol, Detail: "chunk 1 of 2, rank 9 or so", Cause: errors.New("cause")},
			[]int{3}, true},
		{&OpError{Op: Op(0, 1), Err: ErrTransport, Detail: "send"}, nil, true},
		{fmt.Errorf("node n0: %w (from n0)", &OpError{Ranks: []int{2}, Err: ErrPeerLost}), []int{2}, true},
		{errors.New("socket: step 1 has 2 passes"), nil, false},
	} {
		got, ok := RanksIn(c.err.Error())
		if ok != c.ok || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v %v, want %v %v", c.err, got, ok, c.want, c.ok)
		}
	}
}
