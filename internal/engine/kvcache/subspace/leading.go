package subspace

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// powers is the number of multiplications by the matrix. Afterwards the residual of the keys is
// within a hundredth of the minimum for rank directions.
const powers = 10

// Leading returns an orthonormal basis, [rank][n], close to the leading eigenvectors of a positive
// semidefinite matrix: subspace iteration from a fixed start.
func Leading(matrix []float32, n, rank int, s *tensor.AttnScratch) []float32 {
	q, next, tile := make([]float32, rank*n), make([]float32, rank*n), make([]float32, tensor.TileFloats(rank, n))
	wide := make([]float64, rank*n)
	for i := range q {
		h := uint32(i+1) * 2654435761
		h = (h ^ h>>15) * 2246822519
		q[i] = float32(int32(h^h>>13)>>8) / (1 << 23)
	}
	for range powers {
		for r := range rank {
			for c := 0; c < n; c += tensor.BlockSlots {
				copy(tile[tensor.Tile(rank, r, c):][:tensor.BlockSlots], q[r*n+c:(r+1)*n])
			}
		}
		clear(next)
		tensor.MulAdd(next, n, tile, rank, 0, rank, matrix, n, n, 0, n, s)
		for i, x := range next {
			wide[i] = float64(x)
		}
		orthonormal(wide, n)
		for i, x := range wide {
			q[i] = float32(x)
		}
	}
	return q
}

// orthonormal orthonormalises rows of n elements one after another (Gram-Schmidt). A row that
// depends on the earlier ones becomes zero.
func orthonormal(rows []float64, n int) {
	for len(rows) > 0 {
		row := rows[:n]
		rows = rows[n:]
		if square := dot(row, row); square > 0 {
			by := 1 / math.Sqrt(square)
			for i := range row {
				row[i] *= by
			}
		}
		for r := 0; r < len(rows); r += n {
			other := rows[r:][:n]
			share := dot(row, other)
			for i, x := range row {
				other[i] -= float64(share * x)
			}
		}
	}
}

// dot sums in four chains, which are added in pairs.
func dot(a, b []float64) float64 {
	var s [4]float64
	b = b[:len(a)]
	for i := 0; i+4 <= len(a); i += 4 {
		s[0] += float64(a[i] * b[i])
		s[1] += float64(a[i+1] * b[i+1])
		s[2] += float64(a[i+2] * b[i+2])
		s[3] += float64(a[i+3] * b[i+3])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}
