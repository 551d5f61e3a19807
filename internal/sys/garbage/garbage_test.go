package garbage

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestLimit: the target of a small heap is five times the live heap. That of a large one is the live heap and the
// limit, and rises again when the heap has shrunk.
func TestLimit(t *testing.T) {
	const limit, large, slack = 32 << 20, 128 << 20, 16 << 20 // slack: stacks, globals, and what the test allocates
	defer Limit(limit)()
	goal := func() (goal, live int64) {
		s := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		return int64(s[0].Value.Uint64()), int64(s[1].Value.Uint64())
	}
	reaches := func(what string, within func(goal, live int64) bool) {
		t.Helper()
		testutil.Eventually(t, time.Minute, what, func() (bool, string) {
			runtime.GC()
			goal, live := goal()
			return within(goal, live), fmt.Sprintf("goal %d, live %d", goal, live)
		})
	}
	data := make([]byte, large)
	reaches("a bounded target", func(goal, live int64) bool { return live >= large && goal <= live+limit+slack })
	runtime.KeepAlive(data)
	reaches("a high target", func(goal, live int64) bool { return live < slack && goal >= 4*live })
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		live  uint64
		limit int64
		want  int
	}{{0, 100, 400}, {10, 100, 400}, {50, 100, 200}, {100, 100, 100}, {400, 100, 25}, {1 << 50, 100, 10}} {
		if got := percent(c.live, c.limit); got != c.want {
			t.Errorf("%d live bytes, limit %d: %d%%, want %d%%", c.live, c.limit, got, c.want)
		}
	}
}
