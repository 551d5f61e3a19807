package shard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestBytes checks that Bytes predicts the loaded size and that progress ends there.
func TestBytes(t *testing.T) {
	ck, err := checkpoint.Open("../../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	pool := tensor.NewPool(2)
	defer pool.Close()
	for _, mapping := range []topology.Mapping{topology.Gather, topology.Reduce} {
		place, err := topology.Place(1, mapping, ShapeOf(&ck.Config),
			[]topology.Member{{ID: "a", Share: 1}, {ID: "b", Share: 2}, {ID: "c", Share: 4}})
		if err != nil {
			t.Fatal(err)
		}
		for rank := range place.Slices {
			for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Q8_0} {
				t.Run(fmt.Sprint(mapping, rank, dt), func(t *testing.T) {
					want := Bytes(&ck.Config, place, rank, dt)
					var most atomic.Int64
					s, err := Load(context.Background(), ck, place, rank, dt, Options{Pool: pool, Progress: func(done, total int64) {
						if total != want || done > total {
							t.Errorf("%d of %d bytes, want %d", done, total, want)
						}
						for at := most.Load(); done > at && !most.CompareAndSwap(at, done); at = most.Load() {
						}
					}})
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close()
					// Progress counts a matrix in equal parts, rounded down.
					if s.Bytes() != want || most.Load() < want-want/100 {
						t.Errorf("%d bytes loaded, progress up to %d, predicted %d", s.Bytes(), most.Load(), want)
					}
				})
			}
		}
	}
}
