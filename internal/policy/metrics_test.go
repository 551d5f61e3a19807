package policy

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// metricName matches the name of a metric in a string literal.
var metricName = regexp.MustCompile(`^(?:vllm:|shoal_)[a-z0-9_]+$`)

// TestMetricsAreDocumented checks that docs/operations.md names each metric, or its beginning with a *.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := documentedMetrics(string(page))
	checked := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok {
				return true
			}
			name, err := strconv.Unquote(l.Value)
			if err != nil || !metricName.MatchString(name) || !strings.HasPrefix(s.pkg, "internal/") || checked[name] {
				return true
			}
			checked[name] = true
			if !documented(name) {
				t.Errorf("%v: docs/operations.md does not name the metric %s", s.fset.Position(l.Pos()), name)
			}
			return true
		})
	}
	if len(checked) < 60 {
		t.Errorf("%d metrics found, want at least 60", len(checked))
	}
	documented = documentedMetrics("`shoal_a_*`, `shoal_b{label}`")
	if !documented("shoal_a_c") || !documented("shoal_b") || documented("shoal_b_c") || documented("shoal_a") {
		t.Error("the check takes other names than shoal_b and those that begin with shoal_a_")
	}
}

// documentedMetrics returns whether a page names a metric.
func documentedMetrics(page string) func(name string) bool {
	var exact, begins = map[string]bool{}, []string{}
	for _, m := range regexp.MustCompile("`((?:vllm:|shoal_)[a-z0-9_]+)(\\*?)[^`]*`").FindAllStringSubmatch(page, -1) {
		if m[2] == "*" {
			begins = append(begins, m[1])
		} else {
			exact[m[1]] = true
		}
	}
	return func(name string) bool {
		for _, b := range begins {
			if strings.HasPrefix(name, b) {
				return true
			}
		}
		return exact[name]
	}
}
