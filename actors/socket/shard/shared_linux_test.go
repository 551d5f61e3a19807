package shard

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/topology"
)

// Nodes of one machine that load concurrently must get the attention weights that each would load
// alone, in memory that exists once and is freed with the last node. Sliced matrices are not
// shared.
func TestSlicesAreShared(t *testing.T) {
	f, err := sharedmem.Create()
	if errors.Is(err, sharedmem.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	memory := func() int64 {
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return st.Sys().(*syscall.Stat_t).Blocks * 512
	}
	ck, err := checkpoint.Open("../../../internal/engine/model/testdata/llama")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	const nodes = 3
	for _, mapping := range []topology.Mapping{topology.Reduce, topology.Gather} {
		place, err := topology.Place(1, mapping, ShapeOf(&ck.Config),
			[]topology.Member{{ID: "a", Share: 1}, {ID: "b", Share: 1}, {ID: "c", Share: 1}})
		if err != nil {
			t.Fatal(err)
		}
		for _, dt := range []tensor.DType{tensor.BF16, tensor.Q8_0} {
			before := memory()
			var all sync.WaitGroup
			slices, regions := make([]*Weights, nodes), make([]*sharedmem.Region, nodes)
			for rank := range nodes {
				all.Go(func() {
					pool := tensor.NewPool(2)
					defer pool.Close()
					var err error
					if regions[rank], err = sharedmem.Open(f); err == nil {
						slices[rank], err = Load(t.Context(), ck, place, rank, dt, Options{Pool: pool, Shared: regions[rank]})
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if t.Failed() {
				return
			}
			var attention int64
			pool := tensor.NewPool(2)
			for rank := range nodes {
				alone, err := Load(t.Context(), ck, place, rank, dt, Options{Pool: pool})
				if err != nil {
					t.Fatal(err)
				}
				attention = 0
				for i, l := range alone.Layers {
					for j, w := range attentionOf(l) {
						attention += w.Bytes()
						if !bytes.Equal(w.Packed(), attentionOf(slices[rank].Layers[i])[j].Packed()) {
							t.Errorf("%v %v rank %d layer %d: matrix %d differs from an unshared load", mapping, dt, rank, i, j)
						}
					}
				}
				alone.Close()
			}
			pool.Close()
			least, most := attention, attention+int64(len(slices[0].Layers)*4*4096)
			if mapping == topology.Gather {
				least, most = 0, 0
			}
			if got := memory() - before; got < least || got > most {
				t.Errorf("%v %v: %d bytes are shared, want %d to %d", mapping, dt, got, least, most)
			}
			for rank := range nodes {
				slices[rank].Close()
				regions[rank].Close()
			}
			if got := memory() - before; got > 0 {
				t.Errorf("%v %v: %d bytes are left", mapping, dt, got)
			}
		}
	}
}

func attentionOf(l layer.Layer) []*tensor.Weight {
	w := l.(*layer.Weights)
	return []*tensor.Weight{w.Q, w.K, w.V, w.O}
}

// TestSharedMatrixOfStoppedNode: a node that is stopped while it packs a shared matrix does not hold up the load of another.
func TestSharedMatrixOfStoppedNode(t *testing.T) {
	f, err := sharedmem.Create()
	if errors.Is(err, sharedmem.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ck, err := checkpoint.Open("../../../internal/engine/model/testdata/llama")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	place, err := topology.Place(1, topology.Reduce, ShapeOf(&ck.Config), []topology.Member{{ID: "a", Share: 1}, {ID: "b", Share: 1}})
	if err != nil {
		t.Fatal(err)
	}
	load := func(ctx context.Context, rank int, progress func(done, total int64)) error {
		pool := tensor.NewPool(1)
		defer pool.Close()
		region, err := sharedmem.Open(f)
		if err != nil {
			return err
		}
		defer region.Close()
		w, err := Load(ctx, ck, place, rank, tensor.BF16,
			Options{Pool: pool, Shared: region, Progress: progress, sharedWait: 50 * time.Millisecond})
		if err == nil {
			w.Close()
		}
		return err
	}
	stopped, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		ended <- load(t.Context(), 0, func(int64, int64) { once.Do(func() { close(stopped); <-goOn }) })
	}()
	<-stopped
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := load(ctx, 1, nil); err != nil {
		t.Errorf("a load while another node is stopped: %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
