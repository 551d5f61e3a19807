package policy

import (
	"go/ast"
	"slices"
	"testing"
)

// wallClock lists the files that convert between times and numbers, with the reason. Such a time
// has lost its monotonic reading, so differences jump when the clock is set. No wait and no
// decision may depend on one.
var wallClock = map[string]string{
	"internal/server/openai/models.go":          "a time for clients",
	"internal/server/generate/service.go":       "created, for clients",
	"internal/server/openai/contexts.go":        "created, for clients",
	"internal/server/openai/responseencoder.go": "completed, for clients",
	"internal/cli/launch/notready.go":           "a deadline in the past",
	"deploy/release/main.go":                    "the time of a commit",
	"internal/engine/modelfile/stamp.go":        "the times of a file",
	"internal/jobs/batches/store.go":            "when a damaged batch ended, for clients",
	"internal/jobs/files/http.go":               "created, for clients",
	"internal/engine/kvcache/tier/saved.go":     "end times of sessions, in files that outlive the process",
	"internal/server/sessions/book.go":          "times to live of sessions, which continue while no process runs",
	"internal/jobs/store.go": "the times in a journal outlive the process; " +
		"state.go bounds a pause that the clock was set back under",
}

func TestWallClock(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || s.generated() {
			continue
		}
		for _, at := range wallUses(s) {
			if wallClock[s.name] == "" {
				t.Errorf("%s: keep a time.Time, or a duration since the start: this one jumps with "+
					"the machine's clock (or add the reason in clock_test.go)", at)
			}
			seen[s.name] = true
		}
	}
	for name := range wallClock {
		if !seen[name] {
			t.Errorf("%s reads no wall clock any more: take it off the list", name)
		}
	}
}

func TestWallClockCanFail(t *testing.T) {
	for text, want := range map[string]int{
		"var a = time.Now()": 0, "var a = time.Since(b)": 0,
		"var a = time.Now().UnixNano()": 1, "var a = time.Unix(0, b)": 1, "var a = b.UnixMilli()": 1,
	} {
		if got := wallUses(parse(t, "x/y.go", "package x\nimport \"time\"\n"+text+"\n")); len(got) != want {
			t.Errorf("%s: %v, want %d", text, got, want)
		}
	}
}

// wallUses lists where s converts times to numbers or numbers to times.
func wallUses(s source) (uses []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Unix", "UnixNano", "UnixMilli", "UnixMicro"}, sel.Sel.Name) {
			uses = append(uses, s.at(sel)+": "+sel.Sel.Name)
		}
		return true
	})
	return uses
}
