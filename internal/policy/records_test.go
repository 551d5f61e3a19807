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
	recordHead = regexp.MustCompile(`^# (\d+)\. [A-Z].*\n\nStatus: (?:proposed|accepted|superseded by \d+) · Date: \d{4}-\d{2}-\d{2}[^\n]*\n`)
	sections   = regexp.MustCompile(`(?m)^## (.*)$`)
)

// TestRecordsHaveOneForm checks the head, the sections and the number of each decision record.
func TestRecordsHaveOneForm(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/decisions/*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d records: %v", len(pages), err)
	}
	numbers := map[string]string{}
	for _, p := range pages {
		if filepath.Base(p) == "README.md" {
			continue
		}
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		number, complaint := recordForm(string(text))
		if complaint != "" {
			t.Errorf("%s: %s", p, complaint)
		} else if other := numbers[number]; other != "" {
			t.Errorf("%s has number %s, as %s has: take the next free number", p, number, other)
		}
		numbers[number] = p
	}
	good := "# 7. Do it\n\nStatus: accepted · Date: 2026-11-21\n\n## Context\n\n## Decision\n\n## Consequences\n\n## Alternatives\n"
	for text, want := range map[string]string{
		good: "",
		strings.Replace(good, "accepted", "liked", 1):                "head",
		strings.Replace(good, "## Decision\n\n", "", 1):              "sections",
		strings.Replace(good, "## Alt", "## Limits\n\n## Alt", 1):    "sections",
		strings.Replace(good, "· Date: 2026-11-21", "", 1):           "head",
		strings.Replace(good, "accepted", "superseded by 3", 1):      "",
		strings.Replace(good, "# 7. Do it", "# Do it (number 7)", 1): "head",
	} {
		if _, got := recordForm(text); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("the check finds %q, want %q in:\n%s", got, want, text)
		}
	}
}

// recordForm returns the number of a record, or the fault of its form.
func recordForm(text string) (number, complaint string) {
	head := recordHead.FindStringSubmatch(text)
	if head == nil {
		return "", "the head is not \"# NUMBER. Title\", an empty line and \"Status: accepted · Date: YYYY-MM-DD\""
	}
	var got []string
	for _, m := range sections.FindAllStringSubmatch(text, -1) {
		got = append(got, m[1])
	}
	if want := []string{"Context", "Decision", "Consequences", "Alternatives"}; !slices.Equal(got, want) {
		return "", fmt.Sprintf("the sections are %q, want %q", got, want)
	}
	return head[1], ""
}
