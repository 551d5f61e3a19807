package policy

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// TestArchitectureListsPackages checks that the table of ARCHITECTURE.md has each package that
// has a floor: by its path, by its last element after a path of the same row, or by a pattern.
func TestArchitectureListsPackages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range unlisted(string(text), floors) {
		t.Errorf("the table of packages in ARCHITECTURE.md has no row for %s", pkg)
	}
	if got := unlisted("## Packages\n| `a/b`, `c` | two |\n| `d/*` | all |\n## Next\n", "low: a/b a/c d/e\ntop: x/c f\n"); strings.Join(got, " ") != "x/c f" {
		t.Errorf("the check finds %q missing, want x/c and f", got)
	}
}

func unlisted(page, floors string) (out []string) {
	_, table, _ := strings.Cut(page, "\n## Packages\n")
	if strings.HasPrefix(page, "## Packages\n") {
		table = page
	}
	listed := map[string]bool{}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "## ") && !strings.HasPrefix(line, "## Packages") {
			break
		}
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		folder := ""
		for i, name := range strings.Split(cell, "`") {
			if i%2 == 0 {
				continue // between two names
			}
			listed[name] = true
			if folder == "" {
				folder = name
			}
			listed[path.Join(path.Dir(folder), name)] = true
			listed[path.Join(folder, name)] = true
		}
	}
	floor := ""
	for _, line := range strings.Fields(floors) {
		switch name, header := strings.CutSuffix(line, ":"); {
		case header:
			floor = name
		case floor == "helpers", floor == "tests", strings.Contains(line, ":"):
		case !listed[line] && !listed[path.Dir(line)+"/*"]:
			out = append(out, line)
		}
	}
	return out
}
