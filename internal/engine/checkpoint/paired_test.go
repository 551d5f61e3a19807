package checkpoint

import (
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Rows of a projection that are stored in pairs are returned in halves.
func TestPairedRows(t *testing.T) {
	const dim, heads, cols = 8, 3, 2
	data := make([]byte, 4*heads*dim*cols)
	at := 0
	for h := range heads {
		for i := range dim / 2 {
			for half := range 2 { // as stored: i and i+dim/2 adjacent
				for c := range cols {
					v := math.Float32bits(float32(((h*2+half)*dim/2+i)*cols + c))
					data[at], data[at+1], data[at+2], data[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
					at += 4
				}
			}
		}
	}
	m := Tensor{DType: tensor.F32, Shape: []int{heads * dim, cols}, Data: data, order: model.Order{Head: dim, Rotated: dim, Neighbours: true}}
	v := Tensor{DType: tensor.F32, Shape: []int{heads * dim * cols}, Data: data, order: m.order}
	var got [cols]float32
	for r := range heads * dim {
		if m.Row(got[:], r, 0, cols); got != [cols]float32{float32(r * cols), float32(r*cols + 1)} {
			t.Errorf("row %d is %v", r, got)
		}
	}
	v.Shape, v.Data = []int{heads * dim}, nil
	for i := 0; i < len(data); i += 4 * cols {
		v.Data = append(v.Data, data[i:i+4]...)
	}
	bias := make([]float32, 7)
	v.Row(bias, 0, 5, 12)
	for i, b := range bias {
		if b != float32((5+i)*cols) {
			t.Errorf("element %d of the bias is %g", 5+i, b)
		}
	}
}
