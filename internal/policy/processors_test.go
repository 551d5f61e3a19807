package policy

import (
	"go/ast"
	"testing"
)

// The default number of compute threads is the number of CPUs that this process may use: Go's GOMAXPROCS, which
// respects the CPU affinity and the CPU limit of a container (cgroup 1 and 2). runtime.NumCPU
// respects only the affinity and is for descriptions of machines.
var processors = map[string]string{
	"internal/bench/ceiling.go": "the machine of a measurement",
}

func TestProcessors(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || s.generated() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "NumCPU" {
				if seen[s.name] = true; processors[s.name] == "" {
					t.Errorf("%s: a container may have fewer processors than runtime.NumCPU: ask runtime.GOMAXPROCS(0)", s.at(sel))
				}
			}
			return true
		})
	}
	for name := range processors {
		if !seen[name] {
			t.Errorf("%s reads no number of processors any more: remove it from the list", name)
		}
	}
}
