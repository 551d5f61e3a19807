package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// source is one Go file of the module, regardless of its build constraints: rules hold on every
// architecture.
type source struct {
	name    string // slash path from the root
	pkg     string // folder of name: the import path within the module
	test    bool
	imports []string
	file    *ast.File
	fset    *token.FileSet
}

// module is the module path in go.mod.
const module = "github.com/shoal-llm/shoal"

// root is the module's folder, relative to this package.
const root = "../.."

var tree = sync.OnceValues(func() ([]source, error) { return readTree(root) })

// sources parses the module once for all tests. The test process opens the files itself, so they are
// inputs in Go's test cache.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d Go files found: the policy looks at the wrong folder", len(all))
	}
	return all
}

func readTree(root string) ([]source, error) {
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if d.IsDir() {
			if name != "." && foreign(p, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		// Files in the root are not part of a package.
		if !strings.HasSuffix(name, ".go") || !strings.Contains(name, "/") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if script(f) {
			return nil
		}
		s := source{name: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), file: f, fset: fset}
		for _, i := range f.Imports {
			q, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, q)
		}
		all = append(all, s)
		return nil
	})
	return all, err
}

// foreign reports folders that `go list ./...` skips, and nested modules.
func foreign(p, name string) bool {
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(p, "go.mod"))
	return err == nil
}

// script reports files that no build includes ("//go:build ignore").
func script(f *ast.File) bool {
	for _, g := range f.Comments {
		if g.Pos() > f.Package {
			break
		}
		for _, c := range g.List {
			if strings.TrimSpace(c.Text) == "//go:build ignore" {
				return true
			}
		}
	}
	return false
}

// generated reports files written by a tool.
func (s *source) generated() bool { return ast.IsGenerated(s.file) }

func (s *source) at(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// parse parses text as a source, for the tests that show that a rule can fail.
func parse(t *testing.T, name, text string) source {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	s := source{name: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), file: f, fset: fset}
	for _, i := range f.Imports {
		q, _ := strconv.Unquote(i.Path.Value)
		s.imports = append(s.imports, q)
	}
	return s
}
