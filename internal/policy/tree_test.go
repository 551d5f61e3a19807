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

// source is one Go file of the module, whatever its build constraints: a rule
// that holds on one architecture only is not a rule.
type source struct {
	name    string // slash path from the root
	pkg     string // folder of name, which is the import path without the module
	test    bool
	imports []string
	file    *ast.File
	fset    *token.FileSet
}

// module is the path of go.mod.
const module = "github.com/shoal-llm/shoal"

// root is the module's folder, seen from this package.
const root = "../.."

var tree = sync.OnceValues(func() ([]source, error) { return readTree(root) })

// sources parses the module once for all tests. Files are opened by the test
// itself, so Go's test cache knows what the verdict rests on.
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
		// Files of the root are not a package: the module's own name holds no code.
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

// foreign tells of folders that `go list ./...` leaves out, and of nested modules.
func foreign(p, name string) bool {
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(p, "go.mod"))
	return err == nil
}

// script tells of a file that no build takes ("//go:build ignore").
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

// generated tells of a file written by a tool.
func (s *source) generated() bool { return ast.IsGenerated(s.file) }

func (s *source) at(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// parse makes a source of text, for the tests that show a rule go red.
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
