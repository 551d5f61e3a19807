package gossip

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// A second node with the name of a running one is refused twice a second as long as it runs. The log has
// one line a minute about it, also if many names are refused.
func TestRefusalIsLoggedOnceAMinute(t *testing.T) {
	var r refusals
	same, other := errors.New("two members are named a"), errors.New("another format")
	now := time.Unix(1000, 0)
	lines := 0
	for range 240 { // two minutes
		if r.isNew("a", same, now) {
			lines++
		}
		now = now.Add(500 * time.Millisecond)
	}
	if lines != 2 {
		t.Errorf("%d lines in two minutes, want 2", lines)
	}
	if !r.isNew("a", other, now) || !r.isNew("b", same, now) {
		t.Error("another error or another name is not logged")
	}
	lines = 0
	for i := range 10 * maxRefusals {
		if r.isNew(fmt.Sprint("node-", i), same, now) {
			lines++
		}
	}
	if lines > maxRefusals || len(r.logged) > maxRefusals {
		t.Errorf("%d lines, %d remembered refusals, want at most %d", lines, len(r.logged), maxRefusals)
	}
	if !r.isNew("c", same, now.Add(refusalEvery)) {
		t.Error("no line after a minute")
	}
}
