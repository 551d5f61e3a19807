package policy

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9]*`)

// TestNamedTests checks that every test named in test/faults.md exists in the package named before
// it.
func TestNamedTests(t *testing.T) {
	exist := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				exist[s.pkg+" "+f.Name.Name] = true
			}
		}
	}
	text, err := os.ReadFile(path.Join(root, "test/faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		for _, group := range strings.Split(line, ";") {
			parts := strings.Split(group, "`")
			if len(parts) < 3 {
				continue
			}
			pkg := parts[len(parts)-2]
			for _, name := range testName.FindAllString(parts[len(parts)-1], -1) {
				if n++; !exist[pkg+" "+name] {
					t.Errorf("test/faults.md names %s of %s, which does not exist", name, pkg)
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("%d tests are named, want at least 100", n)
	}
}
