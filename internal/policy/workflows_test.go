package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	ciPhases  = regexp.MustCompile(`(?m)^(?:phases|extra)=\(([a-z ]+)\)`)
	ciCall    = regexp.MustCompile(`bash \.ci/run ([a-z ]+)`)
	ciMatrix  = regexp.MustCompile(`(?m)^ {10}- ([a-z ]+)$`)
	makeCall  = regexp.MustCompile(`(?m)^ {10}- make ([a-z-]+)`)
	makeRules = regexp.MustCompile(`(?m)^([a-z -]+):`)
)

// TestWorkflows checks that the workflows of GitHub run every phase of .ci/run, and name only
// phases and targets that exist.
func TestWorkflows(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ci, nightly := read(".github/workflows/ci.yml"), read(".github/workflows/nightly.yml")
	for _, complaint := range workflows(read(".ci/run"), read("Makefile"), ci, nightly) {
		t.Error(complaint)
	}
	for _, broken := range []string{strings.Replace(ci, "policy", "polity", 1), strings.Replace(ci, "- race\n", "- policy\n", 1)} {
		if len(workflows(read(".ci/run"), read("Makefile"), broken, nightly)) == 0 {
			t.Errorf("the check accepts\n%s", broken)
		}
	}
	if len(workflows(read(".ci/run"), read("Makefile"), ci, strings.Replace(nightly, "make soak", "make soap", 1))) == 0 {
		t.Error("the check accepts an unknown target")
	}
}

func workflows(run, makefile, ci, nightly string) (out []string) {
	lists := ciPhases.FindAllStringSubmatch(run, -1)
	if len(lists) != 2 {
		return []string{fmt.Sprintf(".ci/run has %d lists of phases, want 2", len(lists))}
	}
	phases, extra := strings.Fields(lists[0][1]), strings.Fields(lists[1][1])
	var called []string
	for _, m := range append(ciMatrix.FindAllStringSubmatch(ci, -1), ciCall.FindAllStringSubmatch(ci, -1)...) {
		called = append(called, strings.Fields(m[1])...)
	}
	for _, name := range phases {
		if !slices.Contains(called, name) {
			out = append(out, "ci.yml does not run the phase "+name)
		}
	}
	for _, m := range ciCall.FindAllStringSubmatch(nightly, -1) {
		called = append(called, strings.Fields(m[1])...)
	}
	for _, name := range called {
		if !slices.Contains(phases, name) && !slices.Contains(extra, name) {
			out = append(out, "a workflow runs the phase "+name+", which .ci/run does not have")
		}
	}
	var targets []string
	for _, m := range makeRules.FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, strings.Fields(m[1])...)
	}
	for _, m := range makeCall.FindAllStringSubmatch(nightly, -1) {
		if !slices.Contains(targets, m[1]) {
			out = append(out, "nightly.yml runs make "+m[1]+", which the Makefile does not have")
		}
	}
	return out
}
