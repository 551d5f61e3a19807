package policy

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

var (
	// mixedCase matches names such as readTree that are not part of a path, a link or a longer name.
	mixedCase = regexp.MustCompile(`(?:^|[^\w/.:-])([a-z]+[A-Z]\w*)`)
	// qualified matches names such as batcher.Stepper.
	qualified = regexp.MustCompile(`(?:^|[^\w/.:-])([a-z]\w*)\.([A-Z]\w*)`)
	word      = regexp.MustCompile(`\w+`)
)

// elsewhere has the mixed-case names in comments that are not names of this tree: formulas, names of other
// programs, and a variable in an example.
var elsewhere = map[string]bool{"arXiv": true, "gRPC": true, "kHz": true, "mDNS": true, "macOS": true, "vLLM": true,
	"writeMsgRecordLocked": true, "holPart1": true, "runMax": true, "runSum": true, "runO": true, "policy.KeepsPrompt": true}

// TestCommentsNameWhatExists checks that a comment still names something after a rename: a mixed-case name is
// a name or a part of a text somewhere in the tree, and pkg.Name is a name in a package pkg.
func TestCommentsNameWhatExists(t *testing.T) {
	names := knownNames(sources(t))
	checked := 0
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			text := group.Text()
			checked += len(mixedCase.FindAllString(text, -1))
			for _, name := range unknownNames(text, names) {
				t.Errorf("%v: the comment names %s, which does not exist", s.fset.Position(group.Pos()), name)
			}
		}
	}
	if checked < 500 {
		t.Errorf("%d mixed-case names in comments, want at least 500", checked)
	}
	got := unknownNames("knownNames, sources.X and policy.Missing; old"+"Name is used by policy.TestWallClock on macOS.", names)
	if strings.Join(got, " ") != "old"+"Name policy.Missing" {
		t.Errorf("the check finds %q", got)
	}
}

// knownNames returns the identifiers and the words of string literals by the name of the package, without
// _test. Those of all packages are at "".
func knownNames(all []source) map[string]map[string]bool {
	names := map[string]map[string]bool{"": {}}
	for _, s := range all {
		pkg := strings.TrimSuffix(s.file.Name.Name, "_test")
		if names[pkg] == nil {
			names[pkg] = map[string]bool{}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				names[pkg][n.Name], names[""][n.Name] = true, true
			case *ast.BasicLit:
				for _, w := range word.FindAllString(n.Value, -1) {
					names[""][w] = true
				}
			}
			return true
		})
	}
	return names
}

// unknownNames returns the names in a comment that nothing has.
func unknownNames(text string, names map[string]map[string]bool) (out []string) {
	for _, m := range mixedCase.FindAllStringSubmatch(text, -1) {
		if !names[""][m[1]] && !elsewhere[m[1]] {
			out = append(out, m[1])
		}
	}
	for _, m := range qualified.FindAllStringSubmatch(text, -1) {
		if in := names[m[1]]; in != nil && !in[m[2]] && !elsewhere[m[1]+"."+m[2]] {
			out = append(out, m[1]+"."+m[2])
		}
	}
	return out
}
