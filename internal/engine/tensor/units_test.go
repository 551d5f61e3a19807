package tensor

import (
	"testing"

	"pgregory.net/rapid"
)

func TestUnitsTileTheAxis(t *testing.T) {
	for k := 1; k < 3000; k++ {
		at := 0
		for u := range Units(k) {
			s := UnitSpan(k, u)
			if s.Lo != at || s.Hi <= s.Lo || s.Lo%BlockWidth != 0 {
				t.Fatalf("unit %d of %d elements is %v after %d", u, k, s, at)
			}
			at = s.Hi
		}
		if at != k {
			t.Fatalf("units of %d elements end at %d", k, at)
		}
	}
	if Units(0) != 0 || UnitsSpan(0, 0, 0) != (Span{}) || Units(40) != 2 || Units(1<<20) != 16 {
		t.Error("number of units")
	}
}

// treeValue is the definition of the sum tree, written independently.
func treeValue(leaf []float32) float32 {
	if len(leaf) == 1 {
		return leaf[0]
	}
	p := 1
	for p*2 < len(leaf) {
		p *= 2
	}
	return treeValue(leaf[:p]) + treeValue(leaf[p:])
}

// Any cut of the units into ranks combines to the bits of one machine.
func TestSubtreesOfAnyCutCombineToOneMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.IntRange(1, MaxUnits).Draw(t, "units")
		cuts := []int{0}
		for at := 0; at < units; {
			at += rapid.IntRange(0, units-at).Draw(t, "step")
			if len(cuts) > 40 {
				at = units
			}
			cuts = append(cuts, at)
		}
		leaves := make([]float32, units)
		for i := range leaves {
			leaves[i] = rapid.Float32Range(-1e6, 1e6).Draw(t, "leaf")
		}
		var nodes []Span
		var parts [][]float32
		for i := 1; i < len(cuts); i++ {
			for _, n := range Subtrees(cuts[i-1], cuts[i], units) {
				nodes = append(nodes, n)
				part := make([]float32, 300)
				for j := range part {
					part[j] = treeValue(leaves[n.Lo:n.Hi])
				}
				parts = append(parts, part)
			}
		}
		dst := make([]float32, 300)
		CombineTree(dst, nodes, parts, units)
		for i, v := range dst {
			if v != treeValue(leaves) {
				t.Fatalf("cut %v of %d units: element %d is %v, one machine has %v", cuts, units, i, v, treeValue(leaves))
			}
		}
	})
}

func TestCombineTreeRefusesBadTilings(t *testing.T) {
	for _, nodes := range [][]Span{{{0, 4}}, {{0, 4}, {4, 5}}, {{0, 4}, {4, 8}, {4, 8}}, {}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("nodes %v of 8 units were accepted", nodes)
				}
			}()
			parts := make([][]float32, len(nodes))
			for i := range parts {
				parts[i] = make([]float32, 3)
			}
			CombineTree(make([]float32, 3), nodes, parts, 8)
		}()
	}
}

func TestCombineTreeAllocatesNothing(t *testing.T) {
	nodes := []Span{{0, 4}, {4, 6}, {6, 7}, {7, 8}, {8, 16}}
	parts := make([][]float32, len(nodes))
	for i := range parts {
		parts[i] = make([]float32, 700)
	}
	dst := make([]float32, 700)
	if n := testing.AllocsPerRun(20, func() { CombineTree(dst, nodes, parts, 16) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseDType(f *testing.F) {
	for _, s := range []string{"f32", "BF16", "", "q8_0", "dtype(9)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDType(s)
		if err != nil {
			return
		}
		if back, err := ParseDType(d.String()); err != nil || back != d {
			t.Fatalf("%q is %v, which reads back as %v, %v", s, d, back, err)
		}
	})
}

func TestDTypeNames(t *testing.T) {
	for d := F32; d.Valid(); d++ {
		got, err := ParseDType(d.String())
		if err != nil || got != d {
			t.Errorf("%v reads back as %v, %v", d, got, err)
		}
	}
	if d, err := ParseDType("BFloat16"); d != BF16 || err != nil {
		t.Error(d, err)
	}
	if _, err := ParseDType("int3"); err == nil {
		t.Error("int3 is a type")
	}
	if Q4_0.BytesPerRow(33) != 36 || F32.BytesPerRow(3) != 12 {
		t.Error("row sizes")
	}
}
