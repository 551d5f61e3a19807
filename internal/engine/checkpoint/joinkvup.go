package checkpoint

import (
	"fmt"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// joinKVUp joins the two parts of KVUp in files that split it by head. attn_k_b (heads, rank, nope) has
// the transposed rows of keys, as absorbed attention uses them. attn_v_b (heads, value, rank) has the
// rows of values.
func joinKVUp(c *Checkpoint) error {
	l := c.Config.Latent
	for i := range c.Config.Layers {
		at := fmt.Sprintf("blk.%d.attn_", i)
		k, ok := c.at[at+"k_b.weight"]
		v, also := c.at[at+"v_b.weight"]
		if !ok && !also {
			continue
		}
		for _, half := range []struct {
			p     place
			there bool
			name  string
			want  [3]int
		}{{k, ok, "k_b.weight", [3]int{c.Config.Heads, l.Rank, l.Nope}}, {v, also, "v_b.weight", [3]int{c.Config.Heads, l.Value, l.Rank}}} {
			e := &model.Error{File: half.p.path, Tensor: at + half.name, Kind: model.ErrMismatch}
			if !half.there {
				e.File, e.Kind, e.Detail = c.Dir, model.ErrMissing, "missing, but the file has the other half of the latent's projections"
				return e
			}
			if s := half.p.Shape; len(s) != 3 || [3]int(s) != half.want {
				e.Detail = fmt.Sprintf("has shape %v; its metadata requires %v", s, half.want)
				return e
			}
		}
		delete(c.at, at+"k_b.weight")
		delete(c.at, at+"v_b.weight")
		p := k
		p.Name, p.Shape = c.Config.Layer(i).Latent.KVUp.Weight, []int{c.Config.Heads * (l.Nope + l.Value), l.Rank}
		p.Data, p.blocks, p.parts = nil, 0, []Tensor{flat(k.Tensor), flat(v.Tensor)}
		if p.fill = fillKVUp(p.parts[0], p.parts[1], l); k.DType != v.DType {
			p.DType = tensor.Q8_0
		}
		if err := c.add(p); err != nil {
			return err
		}
	}
	return nil
}

// flat makes one matrix of a stack of matrices.
func flat(t Tensor) Tensor {
	t.Shape = []int{t.Shape[0] * t.Shape[1], t.Shape[2]}
	return t
}

// fillKVUp returns rows of KVUp. It transposes a head's keys once and caches them until the head's
// last row: loaders read heads row by row, several heads at once.
func fillKVUp(k, v Tensor, l model.Latent) func(dst []float32, r, lo int) {
	const kept = 64
	var (
		mu    sync.Mutex
		heads = map[int][]float32{} // (nope, rank) of a head
	)
	keys := func(head int) []float32 {
		mu.Lock()
		rows, ok := heads[head]
		mu.Unlock()
		if ok {
			return rows
		}
		rows, line := make([]float32, l.Nope*l.Rank), make([]float32, l.Nope)
		for c := range l.Rank {
			k.Row(line, head*l.Rank+c, 0, l.Nope)
			for n, x := range line {
				rows[n*l.Rank+c] = x
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(heads) >= kept {
			clear(heads)
		}
		heads[head] = rows
		return rows
	}
	return func(dst []float32, r, lo int) {
		head, i := r/(l.Nope+l.Value), r%(l.Nope+l.Value)
		if i >= l.Nope {
			v.Row(dst, head*l.Value+i-l.Nope, lo, lo+len(dst))
			return
		}
		copy(dst, keys(head)[i*l.Rank+lo:][:len(dst)])
		if i == l.Nope-1 {
			mu.Lock()
			delete(heads, head)
			mu.Unlock()
		}
	}
}
