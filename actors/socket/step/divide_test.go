package step

import (
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

func rows(owner, n int) plan.Run   { return plan.Run{Owner: owner, Tokens: make([]int32, n)} }
func prompt(n int) plan.Run        { return plan.Run{Tokens: make([]int32, n), Prefill: true} }
func all(run, n int) piece         { return piece{run, 0, n} }
func pieces(list ...piece) []piece { return list }

// Halves have equally many rows, and of every owner about equally many decode rows. Runs with drafts stay
// whole, and prompts are cut in order.
func TestCutRuns(t *testing.T) {
	for name, c := range map[string]struct {
		runs []plan.Run
		want [2][]piece
	}{
		"one row": {[]plan.Run{rows(0, 1)}, [2][]piece{pieces(all(0, 1)), nil}},
		"owners": {
			[]plan.Run{rows(0, 1), rows(0, 1), rows(0, 1), rows(1, 1), rows(1, 1), rows(1, 1)},
			[2][]piece{pieces(all(0, 1), all(2, 1), all(4, 1)), pieces(all(1, 1), all(3, 1), all(5, 1))},
		},
		"drafts": {
			[]plan.Run{rows(0, 4), rows(0, 1), rows(0, 2), rows(0, 1)},
			[2][]piece{pieces(all(0, 4)), pieces(all(1, 1), all(2, 2), all(3, 1))},
		},
		"a prompt": {[]plan.Run{prompt(7)}, [2][]piece{pieces(all(0, 4)), pieces(piece{0, 4, 7})}},
		"prompts and decode": {
			[]plan.Run{rows(0, 1), rows(1, 1), rows(1, 1), prompt(3), prompt(6)},
			[2][]piece{pieces(all(0, 1), all(2, 1), all(3, 3), piece{4, 0, 1}), pieces(all(1, 1), piece{4, 1, 6})},
		},
		"more decode than any": {[]plan.Run{rows(0, 9), prompt(2)}, [2][]piece{pieces(all(0, 9)), pieces(all(1, 2))}},
	} {
		if got := cutRuns(c.runs); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
