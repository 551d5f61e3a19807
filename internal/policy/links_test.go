package policy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// TestDocsLinks checks that each relative link of a Markdown file names a file of the tree, and
// that the heading exists when the link names one.
func TestDocsLinks(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".") && name != ".github" && p != root) {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".md" || name == "CHANGELOG.md" { // the log may name pages of its time
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		checked++
		for _, complaint := range brokenLinks(p, string(text)) {
			t.Error(complaint)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 30 {
		t.Errorf("%d Markdown files found, want at least 30", checked)
	}
	if got := brokenLinks(filepath.Join(root, "README.md"), "[a](no/such.md) [b](README.md#no-such-heading) [c](README.md)"); len(got) != 2 {
		t.Errorf("the check finds %q, want the first two links", got)
	}
}

// TestPagesAreListed checks that docs/README.md links to each page, and docs/decisions/README.md
// to each record.
func TestPagesAreListed(t *testing.T) {
	for _, folder := range []string{"docs", "docs/decisions"} {
		text, err := os.ReadFile(filepath.Join(root, folder, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
		if err != nil || len(pages) < 20 {
			t.Fatalf("%d pages in %s: %v", len(pages), folder, err)
		}
		for _, page := range pages {
			if name := filepath.Base(page); name != "README.md" && !strings.Contains(string(text), "("+name+")") {
				t.Errorf("%s/README.md has no link to %s", folder, name)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
)

// brokenLinks are the links of one file that lead nowhere.
func brokenLinks(file, text string) (out []string) {
	for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, ":") {
			continue // a URL
		}
		to := file
		if target != "" {
			to = filepath.Join(filepath.Dir(file), target)
		}
		if _, err := os.Stat(to); err != nil {
			out = append(out, file+" links to "+m[1]+", which does not exist")
			continue
		}
		if anchor == "" || filepath.Ext(to) != ".md" {
			continue
		}
		page, err := os.ReadFile(to)
		if err != nil || !headings(string(page))[anchor] {
			out = append(out, file+" links to "+m[1]+": there is no such heading")
		}
	}
	return out
}

// headings are the anchors that GitHub gives a page's headings.
func headings(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return all
}
