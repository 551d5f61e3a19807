package policy

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestSequentialPackages checks that the packages that .ci/run keeps from the race detector, as
// "sequential", start no goroutine, and that each alternative of the list names a package.
func TestSequentialPackages(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^sequential='(.*)'$`).FindSubmatch(script)
	if m == nil {
		t.Fatal(".ci/run has no line sequential='...'")
	}
	sequential := regexp.MustCompile("^(" + string(m[1]) + ")$")
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !sequential.MatchString(s.pkg) {
			continue
		}
		seen[s.pkg] = true
		for _, at := range goStatements(&s) {
			t.Errorf("%s: a goroutine in a package that .ci/run keeps from the race detector: take %s off the list \"sequential\"", at, s.pkg)
		}
	}
	if len(seen) < 20 {
		t.Errorf("the list \"sequential\" names only %d packages", len(seen))
	}
	s := parse(t, "p/p.go", "package p\nfunc f() { go f() }\n")
	if len(goStatements(&s)) != 1 {
		t.Error("the check finds no go statement")
	}
}

func goStatements(s *source) (at []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if g, ok := n.(*ast.GoStmt); ok {
			at = append(at, s.at(g))
		}
		return true
	})
	return at
}
