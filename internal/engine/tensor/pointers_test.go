package tensor

import (
	"reflect"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// The garbage collector may read a kernel's arguments while it runs, so a kernel must not move a
// pointer in them. A pointer beyond its memory points to another object, or to none (which ends the
// process: "found pointer to free object").
func TestKernelsLeavePointers(t *testing.T) {
	forEach(t, func(t *testing.T) {
		k := *kernel.Active
		for dt := range k.Tile {
			for m := range k.Tile[dt] {
				for c := range k.Tile[dt][m] {
					leaves(t, &k.Tile[dt][m][c])
				}
			}
			leaves(t, &k.Rising[dt])
		}
		for dt := range k.Values {
			for i := range k.Values[dt] {
				for c := range k.Values[dt][i] {
					leaves(t, &k.Values[dt][i][c])
				}
			}
		}
		for _, of := range []*map[DType]kernel.AttendKernels{&k.Attend, &k.Picked} {
			wrapped := map[DType]kernel.AttendKernels{}
			for dt, all := range *of {
				for i := range all {
					for g := range all[i] {
						leaves(t, &all[i][g])
					}
				}
				wrapped[dt] = all
			}
			*of = wrapped
		}
		leaves(t, &k.Softmax)
		leaves(t, &k.Fold)
		kernel.Active = &k

		p, r := NewPool(1), rng(1)
		defer p.Close()
		const rows, cols = 200, 544
		for _, dt := range allWeights {
			w := newWeight(t, dt, normal(r, rows*cols), rows, cols, 0, Units(cols))
			for _, n := range []int{1, 2, 3, 4, 5, 6, 16, 100} {
				p.MatMul(make([]float32, n*rows), rows, w, normal(r, n*cols), cols, n)
			}
		}
		var s AttnScratch
		for _, l := range layouts {
			for _, g := range []int{1, 4, 7} {
				const nq, first = 13, 1100
				blocks, q, out := newCache(r, l, first+nq), normal(r, nq*g*l.KDim), make([]float32, nq*g*l.VDim)
				AttendCausal(out, g*l.VDim, q, g*l.KDim, nq, first, 0, g, Score{Scale: 0.3}, l, blocks, &s)
				Attend(out, q, g, Score{Scale: 0.3}, l, blocks, first, nil, &s)
				Attend(out, q, g, Score{Scale: 0.3}, l, blocks, 128, []uint64{0xff00ff, ^uint64(0)}, &s)
			}
		}
	})
}

// leaves makes a kernel fail the test if it moves a pointer in its arguments.
func leaves[A any](t *testing.T, kernel *func(*A)) {
	f := *kernel
	if f == nil {
		return
	}
	*kernel = func(a *A) {
		before := *a
		f(a)
		was, is := reflect.ValueOf(&before).Elem(), reflect.ValueOf(a).Elem()
		for i := range was.NumField() {
			switch was.Field(i).Kind() {
			case reflect.Pointer, reflect.UnsafePointer:
				if was.Field(i).Pointer() != is.Field(i).Pointer() {
					t.Errorf("%v: %s moved by %d", was.Type(), was.Type().Field(i).Name, int64(is.Field(i).Pointer()-was.Field(i).Pointer()))
				}
			}
		}
	}
}
