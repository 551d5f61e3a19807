package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// outside states which packages may import which external module: a path, a path with "/..." for
// all packages below it, "all", or "tests" for test files only. A module may have several lines.
// docs/dependencies.md has each module with its version and the reason for it.
const outside = `
github.com/alecthomas/kong:             internal/cli internal/cli/models internal/cli/launch
github.com/asynkron/protoactor-go:      actors/... cluster internal/coordinator internal/node internal/rpc internal/store
github.com/asynkron/protoactor-go:      internal/weights internal/engine/alone
github.com/chromedp/chromedp:           tests
github.com/dlclark/regexp2/v2:          internal/text/...
github.com/ebitengine/purego:           internal/native
github.com/go-analyze/charts:           internal/tools/rulerplot
github.com/hashicorp/memberlist:        internal/gossip
github.com/hashicorp/mdns:              internal/join
github.com/minio/highwayhash:           internal/store
github.com/nats-io/nats-server/v2:      collective/natsbus
github.com/nats-io/nats.go:             collective/natsbus internal/store internal/jobs/journal/...
github.com/openai/openai-go/v3:         tests
github.com/prometheus/client_golang:    internal/server/... internal/store
github.com/rogpeppe/go-internal:        tests
go.opentelemetry.io/otel:               internal/tracing
go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp: internal/tracing
go.opentelemetry.io/otel/sdk:           internal/tracing
go.opentelemetry.io/otel/trace:         internal/tracing
go.uber.org/goleak:                     tests
go.yaml.in/yaml/v3:                     internal/cli
golang.org/x/sync:                      all
golang.org/x/sys:                       all
golang.org/x/term:                      internal/cli internal/cli/ui internal/cli/launch
golang.org/x/text:                      internal/text/...
github.com/rivo/uniseg:                 internal/text/tokenizer/sentencepiece
golang.org/x/time:                      internal/join
google.golang.org/grpc:                 internal/rpc
google.golang.org/protobuf:             internal/proto internal/node internal/rpc internal/weights internal/text/tokenizer/sentencepiece
pgregory.net/rapid:                     tests
`

func TestOutsideModules(t *testing.T) {
	may, err := parseOutside(outside)
	if err != nil {
		t.Fatal(err)
	}
	all := sources(t)
	for _, s := range all {
		for _, complaint := range checkOutside(may, s) {
			t.Error(complaint)
		}
	}
	for _, permission := range unusedOutside(may, all) {
		t.Errorf("no package uses the permission %q: remove it", permission)
	}
}

// TestDependenciesAreDocumented compares three lists: go.mod, the table above and
// docs/dependencies.md.
func TestDependenciesAreDocumented(t *testing.T) {
	may, err := parseOutside(outside)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct := directModules(string(mod))
	if len(direct) == 0 {
		t.Fatal("no direct dependency found in go.mod: the reader is wrong")
	}
	for path, version := range direct {
		if _, ok := may[path]; !ok {
			t.Errorf("%s is in go.mod but no package may import it: add it to internal/policy", path)
		}
		if !strings.Contains(string(page), fmt.Sprintf("| `%s` | %s |", path, version)) {
			t.Errorf("docs/dependencies.md has no row for %s %s", path, version)
		}
	}
	for path := range may {
		if _, ok := direct[path]; !ok {
			t.Errorf("internal/policy names %s, which go.mod does not require", path)
		}
		if strings.Contains(string(page), "`"+path+"`") && direct[path] == "" {
			t.Errorf("docs/dependencies.md describes %s, which go.mod does not require", path)
		}
	}
}

func TestOutsidePolicyCanFail(t *testing.T) {
	may, err := parseOutside("ex.org/a: low/...\nex.org/t: tests\nex.org/v/v2: all\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, imports, want string }{
		{"low/x.go", "ex.org/a", ""},
		{"low/b/x.go", "ex.org/a/sub", ""},
		{"lower/x.go", "ex.org/a", "may not"},
		{"high/x_test.go", "ex.org/t/sub", ""},
		{"high/x.go", "ex.org/t", "may not"},
		{"high/x.go", "ex.org/v/v2/sub", ""},
		{"high/x.go", "ex.org/v", "no line in the policy"},
		{"high/x.go", "ex.org/ab", "no line in the policy"},
		{"high/x.go", "os/exec", ""},
		{"high/x.go", module + "/low", ""},
	} {
		got := checkOutside(may, parse(t, c.file, fmt.Sprintf("package p\nimport _ %q\n", c.imports)))
		if text := strings.Join(got, "; "); (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s imports %s: got %q, want %q", c.file, c.imports, text, c.want)
		}
	}
	used := []source{parse(t, "low/b/x.go", "package p\nimport _ \"ex.org/a/sub\"\n"),
		parse(t, "high/x_test.go", "package p\nimport _ \"ex.org/t\"\n")}
	if got := strings.Join(unusedOutside(may, used), "; "); got != "ex.org/v/v2: all" {
		t.Errorf("unused: %q", got)
	}
	got := directModules("module m\nrequire (\n\ta v1\n\tb v2 // indirect\n)\nrequire c v3\n")
	if len(got) != 2 || got["a"] != "v1" || got["c"] != "v3" {
		t.Errorf("go.mod misread: %v", got)
	}
}

func parseOutside(text string) (map[string][]string, error) {
	may := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		module, who, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(who) == "" {
			return nil, fmt.Errorf("policy line names no importer: %q", line)
		}
		may[module] = append(may[module], strings.Fields(who)...)
	}
	return may, nil
}

func checkOutside(may map[string][]string, s source) (complaints []string) {
	for _, path := range s.imports {
		first, _, _ := strings.Cut(path, "/")
		if !strings.Contains(first, ".") || strings.HasPrefix(path, module+"/") { // the standard library or this module
			continue
		}
		module := moduleOf(may, path)
		if module == "" {
			complaints = append(complaints, fmt.Sprintf("%s imports %s, which has no line in the policy", s.name, path))
			continue
		}
		ok := slices.ContainsFunc(may[module], func(who string) bool { return permits(who, s.pkg) })
		// Test files and the floor "tests" may import any listed module.
		if !ok && !s.test && !within(s.pkg, "test") {
			complaints = append(complaints, fmt.Sprintf("%s may not import %s: %s is for %s",
				s.name, path, module, strings.Join(may[module], ", ")))
		}
	}
	return complaints
}

// moduleOf returns the module of the policy that has a package, or "".
func moduleOf(may map[string][]string, path string) (module string) {
	for m := range may {
		if within(path, m) && len(m) > len(module) {
			module = m
		}
	}
	return module
}

func permits(who, pkg string) bool {
	below, isTree := strings.CutSuffix(who, "/...")
	return who == "all" || who == pkg || isTree && within(pkg, below)
}

// unusedOutside lists the permissions that no file needs.
func unusedOutside(may map[string][]string, all []source) (unused []string) {
	used := map[string]bool{}
	for _, s := range all {
		for _, path := range s.imports {
			module := moduleOf(may, path)
			for _, who := range may[module] {
				if who == "tests" || permits(who, s.pkg) && !s.test {
					used[module+": "+who] = true
				}
			}
		}
	}
	for module, list := range may {
		for _, who := range list {
			if permission := module + ": " + who; !used[permission] {
				unused = append(unused, permission)
			}
		}
	}
	slices.Sort(unused)
	return unused
}

func within(path, tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }

// directModules returns the requirements of a go.mod that are not "// indirect".
func directModules(mod string) map[string]string {
	direct := map[string]string{}
	block := false
	for _, line := range strings.Split(mod, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "require" && f[1] == "(":
			block = true
		case len(f) == 1 && f[0] == ")":
			block = false
		case block && len(f) == 2:
			direct[f[0]] = f[1]
		case !block && len(f) == 3 && f[0] == "require":
			direct[f[1]] = f[2]
		}
	}
	return direct
}
