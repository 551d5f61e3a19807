package adapters

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

func id(n int) lora.ID { return lora.ID{byte(n)} }

func unused(lora.ID) bool { return false }

func TestLeastRecentlyUsedLeaves(t *testing.T) {
	var c Cache
	c.Reset(100)
	load := func(list ...int) (loads []Load, blocked int) {
		var w []Wanted
		for _, n := range list {
			w = append(w, Wanted{id(n), 40})
		}
		loads, blocked = c.Plan(0, w, unused)
		for _, l := range loads {
			c.Loaded(0, l.ID, true)
		}
		return loads, blocked
	}
	load(1, 2)
	load(1) // 2 is now the oldest
	loads, blocked := load(3)
	if len(loads) != 1 || loads[0].ID != id(3) || len(loads[0].Keep) != 2 || blocked != 1 || c.Ready(id(2)) || !c.Ready(id(1)) {
		t.Errorf("loads %v, blocked %d, 2 ready %v: want 3 in place of 2", loads, blocked, c.Ready(id(2)))
	}
	loads, blocked = c.Plan(0, []Wanted{{id(1), 40}, {id(3), 40}, {id(2), 40}, {id(4), 10}}, unused)
	if len(loads) != 0 || blocked != 2 {
		t.Errorf("loads %v, blocked at %d: adapters of earlier requests must stay", loads, blocked)
	}
	loads, blocked = c.Plan(0, []Wanted{{id(2), 40}}, func(x lora.ID) bool { return x == id(1) })
	if len(loads) != 1 || blocked != 1 || !c.Ready(id(1)) || c.Ready(id(3)) {
		t.Errorf("loads %v: want 2 in place of the unused 3", loads)
	}
}

func TestFailedLoads(t *testing.T) {
	var c Cache
	c.Reset(100)
	now, tries := int64(0), 0
	for {
		loads, _ := c.Plan(now, []Wanted{{id(1), 40}}, unused)
		if len(loads) == 0 {
			if now++; now > 10_000 {
				t.Fatal("the load is not tried again")
			}
			continue
		}
		tries++
		if c.Loaded(now, id(1), false) {
			break
		}
	}
	if tries != MaxFailures || now < firstRetry {
		t.Errorf("%d loads in %d ms, want %d", tries, now, MaxFailures)
	}
	if loads, blocked := c.Plan(now, []Wanted{{id(2), 101}}, unused); len(loads) != 0 || blocked != 1 {
		t.Errorf("an adapter above the limit: %v, blocked %d", loads, blocked)
	}
}

// TestInvariants: the memory never exceeds its limit, an adapter in use never leaves, and a load names all
// adapters that stay.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Cache
		limit := rapid.Int64Range(0, 100).Draw(t, "limit")
		c.Reset(limit)
		used := map[lora.ID]bool{}
		var loading []lora.ID
		for now := range int64(60) {
			var wanted []Wanted
			for _, n := range rapid.SliceOfN(rapid.IntRange(1, 9), 0, 6).Draw(t, "wanted") {
				wanted = append(wanted, Wanted{id(n), int64(7 * n)})
			}
			loads, blocked := c.Plan(now*300, wanted, func(x lora.ID) bool { return used[x] })
			for _, l := range loads {
				loading = append(loading, l.ID)
				keep := map[lora.ID]bool{}
				for _, k := range l.Keep {
					keep[k] = true
				}
				for _, x := range append(loading, l.ID) {
					if c.entries[x] != nil && !keep[x] {
						t.Fatalf("a load does not keep %v", x)
					}
				}
			}
			if c.used > limit {
				t.Fatalf("%d bytes of %d", c.used, limit)
			}
			for x := range used {
				if !c.Ready(x) {
					t.Fatalf("%v left the memory while it was used", x)
				}
			}
			if blocked > len(wanted) {
				t.Fatalf("blocked at %d of %d", blocked, len(wanted))
			}
			if len(loading) > 0 && rapid.Bool().Draw(t, "done") {
				x := loading[0]
				loading = loading[1:]
				c.Loaded(now*300, x, rapid.IntRange(0, 3).Draw(t, "ok") > 0)
			}
			clear(used)
			for n := 1; n < 10; n++ {
				if c.Ready(id(n)) && rapid.Bool().Draw(t, "use") {
					used[id(n)] = true
				}
			}
		}
	})
}
