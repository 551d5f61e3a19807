package policy

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// counted finds numbers of things in this tree, which change with it: "7,378 answers", "(28 lines)".
var counted = regexp.MustCompile(`\b([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+) (?:recorded |bundled |chat )?(lines|answers|chats|templates|packages|fuzzers|commands|metrics|routes|policies|families|architectures|scenarios)\b`)

// numbers maps the numbers that pages may state to the required values; "": a limit or an example,
// which counts nothing in the tree.
var numbers = map[string]string{
	"ARCHITECTURE.md: 5,000 lines": thousands(maxLines),
	"docs/jobs.md: 50,000 lines":   "", // of a batch
	"CONTRIBUTING.md: 36 answers":  "", // a requirement
}

// TestPagesCountNothing refuses numbers in pages that change with every commit. Tables of measurements
// and decisions state the numbers of their day.
func TestPagesCountNothing(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	stated := map[string]bool{}
	for _, page := range append(pages, filepath.Join(root, "README.md"), filepath.Join(root, "ARCHITECTURE.md"),
		filepath.Join(root, "CONTRIBUTING.md")) {
		name, err := filepath.Rel(root, page)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]string{"benchmarks.md", "accuracy.md", "dependencies.md", "reference.md", "http.md"}, filepath.Base(name)) {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range checkNumbers(filepath.ToSlash(name), string(text), stated) {
			t.Error(c)
		}
	}
	for n := range numbers {
		if !stated[n] {
			t.Errorf("no page states %q: remove it from the list", n)
		}
	}
	got := checkNumbers("ARCHITECTURE.md", "It has 7,378 answers, 21 chat templates and at most 5,000 lines.", map[string]bool{})
	if text := strings.Join(got, "; "); len(got) != 2 || !strings.Contains(text, "7,378 answers") ||
		!strings.Contains(text, "21 chat templates") {
		t.Errorf("the check finds %q", got)
	}
}

// checkNumbers lists the counts of a page that it may not state.
func checkNumbers(name, text string, stated map[string]bool) (complaints []string) {
	for _, m := range counted.FindAllStringSubmatch(text, -1) {
		key := name + ": " + m[0]
		want, known := numbers[key]
		stated[key] = true
		if !known {
			complaints = append(complaints,
				fmt.Sprintf("%s states %q, which goes stale: leave the number out, or list it in numbers with its source", name, m[0]))
		} else if want != "" && want != m[1] {
			complaints = append(complaints, fmt.Sprintf("%s states %q, but it is %s", name, m[0], want))
		}
	}
	return complaints
}

// TestCallsOfSocket checks the calls that ARCHITECTURE.md lists against node.Handle.
func TestCallsOfSocket(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(text), "calls sockets in these ways (`internal/node/handle.go`): ")
	list, _, end := strings.Cut(list, ".")
	if !ok || !end {
		t.Fatal("ARCHITECTURE.md has no list of the calls of a socket")
	}
	var want []string
	for _, s := range sources(t) {
		if s.name != "internal/node/handle.go" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					want = append(want, "*"+strings.ToLower(m.Names[0].Name)+"*")
				}
			}
			return true
		})
	}
	if got := strings.Split(list, ", "); len(want) == 0 ||
		strings.Join(slices.Sorted(slices.Values(got)), " ") != strings.Join(slices.Sorted(slices.Values(want)), " ") {
		t.Errorf("ARCHITECTURE.md lists %v, the interface has %v", got, want)
	}
}

// thousands formats a number as pages write it.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
