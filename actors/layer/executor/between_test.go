package executor

import (
	"slices"
	"testing"
)

// TestBetween checks that the jobs queued during a long job run in order and count as progress. If one
// of them ends the term, Between reports it to the long job and later jobs are dropped.
func TestBetween(t *testing.T) {
	e := New()
	term := e.NewTerm()
	var did []string
	begin, done := make(chan struct{}), make(chan struct{})
	term.Submit(func() {
		defer close(done)
		<-begin
		before, _ := e.Progress()
		if !term.Between() {
			t.Error("the term ended before End ran")
		}
		if after, busy := e.Progress(); after != before+3 || !busy {
			t.Errorf("progress from %d to %d, busy %v", before, after, busy)
		}
		term.End(func() { did = append(did, "end") })
		term.Submit(func() { did = append(did, "late") })
		if term.Between() {
			t.Error("the term is still open after End")
		}
	})
	e.Submit(func() { did = append(did, "a") })
	e.Submit(func() { did = append(did, "b") })
	close(begin)
	<-done
	e.Close()
	if want := []string{"a", "b", "end"}; !slices.Equal(did, want) {
		t.Errorf("%v, want %v", did, want)
	}
}
