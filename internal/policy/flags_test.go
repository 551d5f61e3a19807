package policy

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	flagName = regexp.MustCompile(`(?:^|[ (:,])--[a-z][a-z-]+`)
	command  = regexp.MustCompile("`[^`]*`")
)

// TestLibrariesNameNoFlags: errors of packages that Go programs import name options with options.Name,
// because a program has no flags. Commands in back quotes may have flags.
func TestLibrariesNameNoFlags(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.pkg, "/")
		if s.test || s.generated() || top != "cluster" && top != "client" && top != "collective" && top != "topology" && top != "actors" {
			continue
		}
		checked++
		for _, at := range flagLiterals(&s) {
			t.Errorf("%s names a flag: use options.Name, or quote the whole command in back quotes", at)
		}
	}
	if checked < 100 {
		t.Errorf("%d files checked, want at least 100", checked)
	}
	bad := parse(t, "cluster/x.go", "package x\ntype T struct { A int `help:\"see --b\"` }\nvar a, b, c = \"use --quant\", \"run `shoal up --quant q8_0`\", \"a -- b\"\n")
	if got := flagLiterals(&bad); len(got) != 1 || got[0] != "cluster/x.go:3" {
		t.Errorf("the check finds %q, want cluster/x.go:3 alone", got)
	}
}

// flagLiterals returns the places of strings that name a flag. Struct tags are not strings of errors.
func flagLiterals(s *source) (places []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			return n.Tag == nil
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING &&
				flagName.MatchString(command.ReplaceAllString(text, "")) {
				places = append(places, s.at(n))
			}
		}
		return true
	})
	return places
}
