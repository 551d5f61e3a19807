package policy

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// logKey is the form of a key in the log.
var logKey = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// logSynonyms lists words that are not keys, with the key to use.
var logSynonyms = map[string]string{"err": "error", "dir": "folder", "addr": "address", "because": "reason", "why": "reason"}

// TestLogKeys checks the keys of log lines: one form, and one word for one thing, so that a search
// for a key finds all its lines.
func TestLogKeys(t *testing.T) {
	keys := 0
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		n, complaints := checkLogKeys(s)
		keys += n
		for _, c := range complaints {
			t.Error(c)
		}
	}
	if keys < 150 {
		t.Errorf("only %d keys found: the check looks at the wrong calls", keys)
	}
	const bad = `package p
func f() {
	log.Error("a", "err", x)
	c.s.Log.Warn("b", "two words", x, "error", x)
	log.Log(ctx, level, "c", "dir", x)
	log.Info("d", "reason", err)
	log.Info("e", "id", err.Error())
	t.Error("f", "err", x)
}`
	_, got := checkLogKeys(parse(t, "p/p.go", bad))
	if text := strings.Join(got, "; "); len(got) != 4 || !strings.Contains(text, `p.go:3: the log key "err": use "error"`) || !strings.Contains(text, `p.go:4: the log key "two words"`) ||
		!strings.Contains(text, `p.go:5: the log key "dir": use "folder"`) || !strings.Contains(text, `p.go:7: the log key "id" has an error as its value`) {
		t.Errorf("the check finds %q", got)
	}
}

// checkLogKeys returns the number of keys in the log calls of a file, and the wrong ones.
func checkLogKeys(s source) (keys int, complaints []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		for i := firstKey(call); i > 0 && i+1 < len(call.Args); i += 2 {
			lit, ok := call.Args[i].(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				break // an attribute or a list
			}
			keys++
			key, _ := strconv.Unquote(lit.Value)
			at := s.at(lit)
			switch use := logSynonyms[key]; {
			case use != "":
				complaints = append(complaints, fmt.Sprintf("%s: the log key %q: use %q", at, key, use))
			case !logKey.MatchString(key):
				complaints = append(complaints, fmt.Sprintf("%s: the log key %q: want lower case with _ between words", at, key))
			case isError(call.Args[i+1]) && key != "error" && key != "reason" && !strings.HasSuffix(key, "_error"):
				complaints = append(complaints, fmt.Sprintf("%s: the log key %q has an error as its value: use \"error\"", at, key))
			}
		}
		return true
	})
	return keys, complaints
}

// firstKey returns the index of the first key in the arguments of a log call, or 0.
func firstKey(call *ast.CallExpr) int {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return 0
	}
	logger := ""
	switch x := f.X.(type) {
	case *ast.Ident:
		logger = x.Name
	case *ast.SelectorExpr:
		logger = x.Sel.Name
	case *ast.CallExpr:
		logger = "logger"
	}
	if l := strings.ToLower(logger); l != "log" && l != "logger" && l != "slog" {
		return 0
	}
	switch f.Sel.Name {
	case "Debug", "Info", "Warn", "Error":
		return 1
	case "Log":
		return 3
	}
	return 0
}

// isError reports whether an expression is the variable err, or its text.
func isError(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Error" {
			e = f.X
		}
	}
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "err"
}
