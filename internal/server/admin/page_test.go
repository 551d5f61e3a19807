package admin

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// TestPageIsItsOwn: the page loads nothing from elsewhere, and turns no text into HTML.
func TestPageIsItsOwn(t *testing.T) {
	outside := regexp.MustCompile(`https?://[^"'\s]*|//cdn|@import|style="|\son\w+="|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function`)
	err := fs.WalkDir(pageFiles, "web", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, "web/vendor/") {
			return err
		}
		text, err := pageFiles.ReadFile(name)
		for _, found := range outside.FindAllString(string(text), -1) {
			if found != "http://www.w3.org/2000/svg" {
				t.Errorf("%s has %q", name, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVendored: third-party files equal their releases (docs/dependencies.md).
func TestVendored(t *testing.T) {
	want := map[string]string{
		"web/vendor/marked.js":      "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de",
		"web/vendor/marked.LICENSE": "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c",
	}
	files, err := fs.Glob(pageFiles, "web/vendor/*")
	if err != nil || len(files) != len(want) {
		t.Fatalf("vendored are %v: %v", files, err)
	}
	for _, name := range files {
		text, err := pageFiles.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != want[name] {
			t.Errorf("%s has SHA-256 %s, want %s", name, got, want[name])
		}
	}
}
