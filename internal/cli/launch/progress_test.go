package launch

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestLoadingLines checks the output of a load without a terminal: every five seconds a line with the
// progress and the duration of this load, and nothing for a short load.
func TestLoadingLines(t *testing.T) {
	var out bytes.Buffer
	l := newLoading(&ui.Env{Stderr: &out})
	at := func(done int64, seconds float64) {
		ago := time.Duration(seconds * float64(time.Second))
		l.lastLine, l.began = l.lastLine.Add(-ago), l.began.Add(-ago)
		l.show([]wire.NodeState{{ID: "n0", LoadedBytes: done, LoadBytes: 4 << 30}, {ID: "n1", LoadedBytes: 2 << 30, LoadBytes: 2 << 30}})
	}
	at(0, 0)
	at(1<<30, 4)
	if out.Len() > 0 {
		t.Errorf("after 4 s it prints %q", out.String())
	}
	at(2<<30, 2)
	at(2<<30, 3) // less than five seconds after the last line
	at(3<<30, 3)
	at(4<<30, 6)
	at(0, 9) // a second load has its own start
	at(1<<30, 6)
	want := "loading for 6 s: n0 50% of 4.00 GiB\nloading for 12 s: n0 75% of 4.00 GiB\nloading for 6 s: n0 25% of 4.00 GiB\n"
	if got := out.String(); got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
	if strings.Contains(loadingText(nil), "%") {
		t.Error("it prints progress although no node loads")
	}
}

func TestLoadingBar(t *testing.T) {
	nodes := []wire.NodeState{
		{ID: "n0", LoadedBytes: 3 << 30, LoadBytes: 4 << 30},
		{ID: "idle"},
		{ID: "n1", LoadedBytes: 1 << 30, LoadBytes: 4 << 30},
	}
	for want, nodes := range map[string][]wire.NodeState{
		"n0 loads [==================      ] 75% of 4.00 GiB, 12s": nodes[:2],
		"": nodes[1:2],
		"2 nodes load [============            ] 50% of 8.00 GiB, n1 25%, 12s": nodes,
	} {
		if got := loadingBar(nodes, 12_700*time.Millisecond); got != want {
			t.Errorf("the bar is %q, want %q", got, want)
		}
	}
}
