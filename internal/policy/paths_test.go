package policy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named matches the file names in a document's code spans.
var named = regexp.MustCompile("`([a-z][a-zA-Z0-9_./-]*\\.(?:go|md|txt|proto|py))`")

// TestDocsNameFilesThatExist: a file that a document names exists with that path or with a longer
// path that ends with it. Names in capital letters are placeholders.
func TestDocsNameFilesThatExist(t *testing.T) {
	var files []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		files = append(files, "/"+filepath.ToSlash(p))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	missing := func(text string) (out []string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			found := strings.HasPrefix(m[1], "github.com/") || strings.Contains(m[1], "NAME")
			for _, f := range files {
				found = found || strings.HasSuffix(f, "/"+m[1])
			}
			if !found {
				out = append(out, m[1])
			}
		}
		return out
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		docs, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range docs {
			text, err := os.ReadFile(doc)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range missing(string(text)) {
				t.Errorf("%s names %s, which is not there", doc, name)
			}
		}
	}
	if got := missing("`internal/policy/paths_test.go`, `no/such.go`"); len(got) != 1 || got[0] != "no/such.go" {
		t.Errorf("the check finds %v", got)
	}
}
