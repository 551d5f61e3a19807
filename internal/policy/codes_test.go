package policy

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// errorCode matches the code of an error in a string literal.
var errorCode = regexp.MustCompile(`^[a-z]+(?:_[a-z]+)*$`)

// codeArguments are the functions that take a code, and the index of this argument.
var codeArguments = map[string]int{"InvalidCode": 1, "sessionConflict": 1, "Unavailable": 0, "refuse": 0, "Refused": 2}

// undocumentedCodes are those that no client of the API gets: the connection is closed, or only Go programs cause them.
var undocumentedCodes = map[string]bool{"client_closed_request": true, "deadline_exceeded": true, "duplicate_request": true}

// TestErrorCodesAreDocumented checks that a page names each code of an error of the API.
func TestErrorCodesAreDocumented(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	var docs strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(text)
	}
	checked := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !strings.HasPrefix(s.pkg, "internal/server") && !strings.HasPrefix(s.pkg, "internal/jobs") && s.pkg != "cluster" &&
			s.pkg != "actors/batcher" {
			continue
		}
		for _, l := range codesIn(s.file) {
			code, err := strconv.Unquote(l.Value)
			if err != nil || !errorCode.MatchString(code) || checked[code] || undocumentedCodes[code] {
				continue
			}
			checked[code] = true
			if !strings.Contains(docs.String(), "`"+code+"`") {
				t.Errorf("%v: no page of docs names the code %s; docs/api.md#errors lists them", s.fset.Position(l.Pos()), code)
			}
		}
	}
	if len(checked) < 75 {
		t.Errorf("%d codes found, want at least 75", len(checked))
	}
}

// codesIn returns the literals of a file that are codes: of a field Code, a variable code, a constant that begins
// with Code, or an argument.
func codesIn(f *ast.File) (out []*ast.BasicLit) {
	add := func(e ast.Expr) {
		if l, ok := e.(*ast.BasicLit); ok {
			out = append(out, l)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Code" {
				add(n.Value)
			}
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if strings.HasPrefix(name.Name, "Code") && i < len(n.Values) {
					add(n.Values[i])
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if name, ok := to.(*ast.Ident); ok && name.Name == "code" && i < len(n.Rhs) {
					add(n.Rhs[i])
				}
			}
		case *ast.CallExpr:
			name := ""
			switch f := n.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			if i, ok := codeArguments[name]; ok && i < len(n.Args) {
				add(n.Args[i])
			}
		}
		return true
	})
	return out
}
