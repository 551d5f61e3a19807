package policy

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// storage lists the names of package tensor that actors other than actors/layer may use: how
// numbers are stored and divided. Computing is a backend's task (docs/decisions/backend.md).
var storage = strings.Fields("AttnScratch BF16 Bank BlockSlots BlockWidth Codes DType F16 F32 " +
	"Int8 KVLayout NewBank NewPool NewWeight NewWeightIn NewWeightUnits ParseDType Pool Q8_0 Quantized " +
	"RowGrain RunBlocks Score Span Spent Subtrees Units UnitsSpan Weight WeightBytes")

func TestActorsComputeThroughTheBackend(t *testing.T) {
	for _, s := range sources(t) {
		for _, name := range computes(s) {
			t.Errorf("%s uses %s: compute it in actors/layer, through Backend", s.name, name)
		}
	}
}

func TestActorsComputeCanFail(t *testing.T) {
	for text, want := range map[string]int{"var a tensor.Span": 0, "var a = tensor.Dot(b)": 1,
		"func f() { pool.MatMul(b) }": 1, "func f() { pool.Run(b) }": 0, "func f() { store.Weigh(b) }": 1} {
		for file, want := range map[string]int{"actors/socket/y.go": want, "actors/layer/y.go": 0,
			"actors/socket/y_test.go": 0, "bench/y.go": 0} {
			if got := computes(parse(t, file, "package x\n"+text+"\n")); len(got) != want {
				t.Errorf("%s: %s: %v, want %d", file, text, got, want)
			}
		}
	}
}

// computes returns names that an actor must not use: computing functions of package tensor, and
// caches that weigh their slots.
func computes(s source) (names []string) {
	if s.test || !strings.HasPrefix(s.name, "actors/") || s.pkg == "actors/layer" || strings.HasPrefix(s.pkg, "actors/layer/") {
		return nil
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if x, ok := n.(*ast.SelectorExpr); ok {
			of, _ := x.X.(*ast.Ident)
			if strings.HasPrefix(x.Sel.Name, "MatMul") || x.Sel.Name == "Weigh" ||
				of != nil && of.Name == "tensor" && !slices.Contains(storage, x.Sel.Name) {
				names = append(names, x.Sel.Name)
			}
		}
		return true
	})
	return names
}
