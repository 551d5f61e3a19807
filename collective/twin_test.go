package collective

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The reference implementations: each collective as loops over all ranks.

// program is one operation on all ranks, with the expected results and room for the actual ones.
type program struct {
	id    OpID
	what  string
	start func(g *Group, rank int, done func(error))
	check func(rank int) error
}

func randomFloats(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64()) * float32(math.Exp2(float64(r.IntN(12))))
	}
	return v
}

func poisoned(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return v
}

func sameFloats(what string, got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			return fmt.Errorf("%s: value %d of %d is %v, want %v", what, i, len(got), got[i], want[i])
		}
	}
	return nil
}

func sameBytes(what string, got, want []byte) error {
	if string(got) != string(want) {
		return fmt.Errorf("%s: %d bytes differ from the %d expected", what, len(got), len(want))
	}
	return nil
}

func allGatherProgram(id OpID, r *rand.Rand, n, most int) program {
	mine := make([][]float32, n)
	recv := make([][][]float32, n)
	for i := range mine {
		mine[i] = randomFloats(r, r.IntN(most+1))
	}
	for i := range recv {
		recv[i] = make([][]float32, n)
		for j := range mine {
			if i != j || r.IntN(2) == 0 {
				recv[i][j] = poisoned(len(mine[j]))
			}
		}
	}
	return program{id, fmt.Sprintf("all-gather of up to %d", most),
		func(g *Group, k int, done func(error)) { g.AllGather(id, mine[k], recv[k], done) },
		func(k int) error {
			for j := range mine {
				if recv[k][j] == nil {
					continue
				}
				if err := sameFloats(fmt.Sprintf("rank %d from %d", k, j), recv[k][j], mine[j]); err != nil {
					return err
				}
			}
			return nil
		}}
}

func allToAllProgram(id OpID, r *rand.Rand, n, most int) program {
	send := make([][][]byte, n)
	recv := make([][][]byte, n)
	for i := range n {
		send[i], recv[i] = make([][]byte, n), make([][]byte, n)
	}
	for i := range n {
		for j := range n {
			if r.IntN(3) > 0 {
				send[i][j] = make([]byte, r.IntN(most+1))
				for b := range send[i][j] {
					send[i][j][b] = byte(r.Uint32())
				}
				recv[j][i] = make([]byte, len(send[i][j]))
			}
		}
	}
	return program{id, fmt.Sprintf("all-to-all of up to %d", most),
		func(g *Group, k int, done func(error)) { g.AllToAll(id, send[k], recv[k], done) },
		func(k int) error {
			for j := range n {
				if err := sameBytes(fmt.Sprintf("rank %d from %d", k, j), recv[k][j], send[j][k]); err != nil {
					return err
				}
			}
			return nil
		}}
}

// twinTree sums units lo..hi by the definition.
func twinTree(leaves [][]float32, lo, hi, i int) float32 {
	if hi-lo == 1 {
		return leaves[lo][i]
	}
	p := 1
	for p*2 < hi-lo {
		p *= 2
	}
	return twinTree(leaves, lo, lo+p, i) + twinTree(leaves, lo+p, hi, i)
}

// randomTree cuts units among n ranks at random and returns the nodes and
// values of each, and the whole sum.
func randomTree(r *rand.Rand, n, size int) (units int, nodes [][]tensor.Span, values [][][]float32, sum []float32) {
	units = 1 + r.IntN(16)
	leaves := make([][]float32, units)
	for u := range leaves {
		leaves[u] = randomFloats(r, size)
	}
	cuts := make([]int, n+1)
	for i := 1; i < n; i++ {
		cuts[i] = r.IntN(units + 1)
	}
	cuts[n] = units
	for i := range cuts {
		for j := range i {
			if cuts[j] > cuts[i] {
				cuts[i], cuts[j] = cuts[j], cuts[i]
			}
		}
	}
	nodes, values = make([][]tensor.Span, n), make([][][]float32, n)
	for k := range n {
		nodes[k] = tensor.Subtrees(cuts[k], cuts[k+1], units)
		for _, s := range nodes[k] {
			v := make([]float32, size)
			for i := range v {
				v[i] = twinTree(leaves, s.Lo, s.Hi, i)
			}
			values[k] = append(values[k], v)
		}
	}
	sum = make([]float32, size)
	for i := range sum {
		sum[i] = twinTree(leaves, 0, units, i)
	}
	return units, nodes, values, sum
}

func allReduceProgram(id OpID, r *rand.Rand, n, size int) program {
	units, nodes, values, sum := randomTree(r, n, size)
	out := make([][]float32, n)
	for k := range out {
		out[k] = poisoned(size)
	}
	return program{id, fmt.Sprintf("all-reduce of %d in %d units", size, units),
		func(g *Group, k int, done func(error)) { g.AllReduceTree(id, units, nodes, values[k], out[k], done) },
		func(k int) error { return sameFloats(fmt.Sprintf("rank %d", k), out[k], sum) }}
}

func reduceScatterProgram(id OpID, r *rand.Rand, n, size int) program {
	units, nodes, values, sum := randomTree(r, n, size)
	bounds := make([]int, n+1)
	for i := 1; i <= n; i++ {
		bounds[i] = bounds[i-1] + r.IntN(size-bounds[i-1]+1)
	}
	bounds[n] = size
	out := make([][]float32, n)
	for k := range out {
		out[k] = poisoned(bounds[k+1] - bounds[k])
	}
	return program{id, fmt.Sprintf("reduce-scatter of %d in %d units", size, units),
		func(g *Group, k int, done func(error)) {
			g.ReduceScatterTree(id, units, nodes, values[k], bounds, out[k], done)
		},
		func(k int) error { return sameFloats(fmt.Sprintf("rank %d", k), out[k], sum[bounds[k]:bounds[k+1]]) }}
}

func barrierProgram(id OpID) program {
	return program{id, "barrier",
		func(g *Group, k int, done func(error)) { g.Barrier(id, done) },
		func(int) error { return nil }}
}

func randomProgram(id OpID, r *rand.Rand, n, most int) program {
	switch r.IntN(5) {
	case 0:
		return allGatherProgram(id, r, n, most)
	case 1:
		return allToAllProgram(id, r, n, 4*most)
	case 2:
		return allReduceProgram(id, r, n, r.IntN(most+1))
	case 3:
		return reduceScatterProgram(id, r, n, r.IntN(most+1))
	}
	return barrierProgram(id)
}
