package policy

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	maxFolders = 16   // at the top of the tree, without hidden and ignored ones
	maxLines   = 5000 // of a package, without tests and generated files
)

func TestPackagesAreSmall(t *testing.T) {
	lines := map[string]int{}
	for _, s := range sources(t) {
		if !s.test && !s.generated() {
			lines[s.pkg] += s.fset.File(s.file.Pos()).LineCount()
		}
	}
	for _, complaint := range checkSizes(lines) {
		t.Error(complaint)
	}
	if got := strings.Join(checkSizes(map[string]int{"a": 5001, "b": 5000}), "; "); !strings.Contains(got, "a has 5001") ||
		strings.Contains(got, "b has") {
		t.Errorf("the check finds %q, want a alone", got)
	}
}

// checkSizes lists packages above the limit.
func checkSizes(lines map[string]int) (complaints []string) {
	for pkg, n := range lines {
		if n > maxLines {
			complaints = append(complaints, fmt.Sprintf("package %s has %d lines, at most %d are allowed: split it", pkg, n, maxLines))
		}
	}
	slices.Sort(complaints)
	return complaints
}

func TestFewFoldersAtTheTop(t *testing.T) {
	list, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, f := range list {
		if f.IsDir() && !strings.HasPrefix(f.Name(), ".") && !strings.Contains("\n"+string(ignored), "\n/"+f.Name()+"/\n") {
			folders = append(folders, f.Name())
		}
	}
	if len(folders) < 5 || len(folders) > maxFolders {
		t.Errorf("%d folders at the top, at most %d are allowed: %s", len(folders), maxFolders, strings.Join(folders, ", "))
	}
	for _, data := range []string{"jetstream", "lock"} { // of a node that ran here
		if _, err := os.Stat(filepath.Join(root, data)); err == nil {
			t.Errorf("%s is data of a node that ran in this folder: stop it, remove the data, and give it a --data-dir", data)
		}
	}
}

// TestNoRecordsOfRapid refuses committed records of failed property tests. The next change of a
// generator makes them meaningless. Git ignores them, but a forced add or a merge can bring one in.
func TestNoRecordsOfRapid(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a checkout of git: ", err)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z", "--", ".gitignore", "*.fail").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if files[0] != ".gitignore" {
		t.Fatalf("git lists %q, want .gitignore first: the policy looks at the wrong folder", files)
	}
	for _, f := range files[1:] {
		t.Errorf("%s is a record of a failed property test: write a test of its case, then git rm it", f)
	}
}

// TestSchedulerStateIsSmall keeps features out of the scheduler's core: each is a module with hooks.
func TestSchedulerStateIsSmall(t *testing.T) {
	const most = 45
	methods := 0
	for _, s := range sources(t) {
		if s.test || s.pkg != "actors/batcher" {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok && fmt.Sprint(star.X) == "State" {
					methods++
				}
			}
		}
	}
	if methods < 20 || methods > most {
		t.Errorf("batcher.State has %d methods, at most %d are allowed: give the feature a module with hooks", methods, most)
	}
}
