package quantform

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"
)

// groups32 is an I32 tensor of the groups of columns.
func groups32(of ...int32) *Part {
	p := &Part{Name: "m.weight_g_idx", Stored: "I32", Shape: []int{len(of)}}
	for _, g := range of {
		p.Data = binary.LittleEndian.AppendUint32(p.Data, uint32(g))
	}
	return p
}

// compressed-tensors fills an unused index with -1. Reading one must not take quadratic time: a matrix has up to a
// million columns.
func TestUnusedIndexOfManyColumns(t *testing.T) {
	unused := make([]int32, 1<<18)
	for i := range unused {
		unused[i] = -1
	}
	began := time.Now()
	of, err := groupIndex(groups32(unused...), len(unused), 4)
	if took := time.Since(began); err != nil || of != nil || took > 5*time.Second {
		t.Errorf("%v, %v, after %v", of != nil, err, took)
	}
	for _, index := range [][]int32{{-1, -1, -1, 0}, {0, -1, 1, 1}, {0, 0, 1, -1}, {0, 0, 2, 1}, {-2, 0, 1, 1}} {
		if _, err := groupIndex(groups32(index...), 4, 2); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("%v: %v", index, err)
		}
	}
	if of, err := groupIndex(groups32(0, 0, 1, 1), 4, 2); err != nil || of != nil {
		t.Errorf("neighbours: %v", err)
	}
	if of, err := groupIndex(groups32(1, 0, 1, 0), 4, 2); err != nil || of == nil || of(0) != 1 || of(3) != 0 {
		t.Errorf("act-order: %v", err)
	}
}
