package machine

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// The owner commits the last tokens of an ended sequence up to the end of its blocks, and copies the recurrent states
// there. It does so once.
func TestLastTokens(t *testing.T) {
	for _, c := range []struct {
		name                 string
		read, staged, copied int
		copies               bool
		end                  int
		want                 []Effect
	}{
		{"rows", 120, 15, 0, false, 128, []Effect{{Do: DoCommit, Seq: 1, Tokens: 128}}},
		{"rows and states", 120, 15, 64, true, 128, []Effect{{Do: DoCommit, Seq: 1, Tokens: 128, Copy: 128}}},
		{"states alone", 128, 15, 64, true, 128, []Effect{{Do: DoCommit, Seq: 1, Tokens: 128, Copy: 128}}},
		{"copied before", 128, 15, 128, true, 128, nil},
		{"an earlier block", 130, 15, 128, true, 128, nil},
		{"no rows", 128, 0, 128, true, 128, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			make1 := func() *Machine {
				m := checked(t)
				m.Phase, m.limits.Ranks, m.limits.Recurrent = Ready, 1, c.copies
				m.seqs[1].Read, m.seqs[1].Staged, m.seqs[1].copied, m.seqs[1].copies = c.read, c.staged, c.copied, c.copies
				return m
			}
			from := c.end/64 - 1
			k := plan.Keep{Seq: 1, From: from, Blocks: []uint64{13}}
			if c.copies {
				k.Snapshot = 13
			}
			m := make1()
			if err := m.checkKeep([]plan.Keep{k}); err != nil {
				t.Fatal(err)
			}
			commits := func(list []Effect) []Effect {
				return slices.DeleteFunc(list, func(f Effect) bool { return f.Do != DoCommit })
			}
			if got := commits(m.keep(nil, []plan.Keep{k})); !slices.EqualFunc(got, c.want, sameEffect) {
				t.Errorf("keep: %v, want %v", got, c.want)
			}
			m = make1()
			r := &proto.PrefixRequest{Seq: 1, From: uint32(from), Blocks: []uint64{13}, Keys: make([]byte, 64)}
			for _, want := range [][]Effect{c.want, nil} {
				got, err := m.Restore(r)
				if err != nil || !slices.EqualFunc(got, want, sameEffect) {
					t.Errorf("fetch: %v, %v, want %v", got, err, want)
				}
				delete(m.blocks, 13)
			}
		})
	}
}

func sameEffect(a, b Effect) bool {
	return a.Do == b.Do && a.Seq == b.Seq && a.Tokens == b.Tokens && a.Copy == b.Copy
}
