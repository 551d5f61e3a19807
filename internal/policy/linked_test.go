package policy

import (
	"os/exec"
	"strings"
	"testing"
)

// unlinked lists packages that the program must not link, with all packages below them. They are
// large, and only tests and tools need them.
var unlinked = []string{
	"testing",
	"github.com/chromedp",
	"github.com/go-analyze",
	"github.com/golang/freetype",
	"github.com/openai/openai-go",
	"golang.org/x/image",
	"golang.org/x/net/trace", // left out by the tag of deploy/release
	"golang.org/x/text/cases",
	"golang.org/x/text/language",
	"golang.org/x/tools",
	"pgregory.net/rapid",
	module + "/internal/tools",
}

func TestLinkedPackages(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace", module+"/cmd/shoal").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := strings.Fields(string(out))
	if len(linked) < 200 {
		t.Fatalf("go list names only %d packages", len(linked))
	}
	if bad := heavy(linked); len(bad) > 0 {
		t.Errorf("cmd/shoal links %s: import them only in tests and in internal/tools, or see `go list -deps`", strings.Join(bad, ", "))
	}
	got := heavy([]string{"testing/iotest", "testingx", "golang.org/x/text/cases"})
	if strings.Join(got, " ") != "testing/iotest golang.org/x/text/cases" {
		t.Errorf("the check finds %v", got)
	}
}

func heavy(linked []string) (bad []string) {
	for _, pkg := range linked {
		for _, tree := range unlinked {
			if within(pkg, tree) {
				bad = append(bad, pkg)
			}
		}
	}
	return bad
}
