package policy

import (
	_ "embed"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// floors states which package may import which, lowest floor first. A package may import
// any package of a lower floor. Where its floor lists the pair importer:imported, it may import
// that neighbour too. A package without a floor fails the test.
//
// Packages of the floor "helpers" are for tests. They import downwards like others, but only
// test files and the floor "tests" may import them.
//
//go:embed floors.txt
var floors string

func TestImportsPointDown(t *testing.T) {
	p, err := parseFloors(floors)
	if err != nil {
		t.Fatal(err)
	}
	unused := maps.Clone(p.floor)
	for _, s := range sources(t) {
		delete(unused, s.pkg)
		for _, complaint := range p.check(s) {
			t.Error(complaint)
		}
	}
	for pkg := range unused {
		t.Errorf("floors.txt lists %s, and no such package exists", pkg)
	}
}

// TestImportPolicyCanFail shows that each rule can fail.
func TestImportPolicyCanFail(t *testing.T) {
	p, err := parseFloors("low: a\nmid: b c b:c\nhelpers: b/btest\ntop: d\ntests: x\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, imports, want string // want "": allowed
	}{
		{"d/d.go", module + "/a", ""},
		{"a/a.go", module + "/d", "must point down"},
		{"a/a_test.go", module + "/d", "must point down"},
		{"b/b.go", module + "/c", ""},
		{"c/c.go", module + "/b", "neighbour"},
		{"c/c_test.go", module + "/b", "neighbour"},
		{"b/b_test.go", module + "/b", ""}, // package b_test
		{"a/a_test.go", module + "/b/btest", ""},
		{"d/d_test.go", module + "/b/btest", ""},
		{"x/x.go", module + "/b/btest", ""},
		{"d/d.go", module + "/b/btest", "helper of tests"},
		{"b/btest/btest.go", module + "/b", ""},
		{"b/btest/btest.go", module + "/d", "must point down"},
		{"new/new.go", module + "/a", "new has no floor"},
		{"d/d.go", module + "/new", "has no floor"},
		{"d/d.go", module, "has no floor"},
		{"d/d.go", "fmt", ""},
	} {
		got := p.check(parse(t, c.file, fmt.Sprintf("package p\nimport _ %q\n", c.imports)))
		if text := strings.Join(got, "; "); (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s imports %s: got %q, want %q", c.file, c.imports, text, c.want)
		}
	}
	for _, bad := range []string{"a b", "low: a\nhigh: a", "low: a a:b", "low: a a:b b"} {
		if _, err := parseFloors(bad); err == nil {
			t.Errorf("policy %q was accepted", bad)
		}
	}
}

type importPolicy struct {
	floor map[string]int
	line  []string        // names of the floors
	same  map[string]bool // importer:imported on the same floor
}

// parseFloors reads a floor's name with a colon at its end, then its packages and pairs, one on
// each line. The packages of a floor come before its pairs.
func parseFloors(text string) (*importPolicy, error) {
	p := &importPolicy{floor: map[string]int{}, same: map[string]bool{}}
	for _, line := range strings.Fields(text) {
		if name, ok := strings.CutSuffix(line, ":"); ok {
			p.line = append(p.line, name)
			continue
		}
		at := len(p.line) - 1
		if at < 0 {
			return nil, fmt.Errorf("%s stands before the first floor", line)
		}
		importer, imported, pair := strings.Cut(line, ":")
		if pair {
			for _, n := range []string{importer, imported} {
				if floor, ok := p.floor[n]; !ok || floor != at {
					return nil, fmt.Errorf("floor %s: %s is not importer:imported of that floor", p.line[at], line)
				}
			}
			p.same[line] = true
			continue
		}
		if _, twice := p.floor[line]; twice {
			return nil, fmt.Errorf("policy names %s twice", line)
		}
		p.floor[line] = at
	}
	return p, nil
}

// check returns the violations in the imports of one file.
func (p *importPolicy) check(s source) (complaints []string) {
	at, ok := p.floor[s.pkg]
	if !ok {
		return []string{fmt.Sprintf("%s: package %s has no floor: add it to the policy", s.name, s.pkg)}
	}
	for _, path := range s.imports {
		imp, ours := strings.CutPrefix(path, module+"/")
		if !ours && path != module || imp == s.pkg {
			continue
		}
		below, ok := p.floor[imp]
		switch {
		case !ok:
			complaints = append(complaints, fmt.Sprintf("%s imports %s, which has no floor", s.name, path))
		case p.line[below] == "helpers":
			if !s.test && p.line[at] != "tests" && (p.line[at] != "helpers" || !p.same[s.pkg+":"+imp]) {
				complaints = append(complaints, fmt.Sprintf("%s imports %s, a helper of tests, from code that ships", s.name, path))
			}
		case below > at:
			complaints = append(complaints, fmt.Sprintf("%s imports %s: imports must point down (%s stands on %s, %s on %s)",
				s.name, path, s.pkg, p.line[at], imp, p.line[below]))
		case below == at && !p.same[s.pkg+":"+imp]:
			complaints = append(complaints,
				fmt.Sprintf("%s imports its neighbour %s: allow it in the policy or move the shared part down", s.name, path))
		}
	}
	return complaints
}
