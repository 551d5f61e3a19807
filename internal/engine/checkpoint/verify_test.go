package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

func TestVerifyBundled(t *testing.T) {
	r, err := checkpoint.Verify("../../../models/fry")
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	if r.Parameters != 15735168 || r.Bytes != 2*15735168 || r.KVBytesBF16 != 8192 || r.KVBytesF32 != 16384 {
		t.Errorf("%d parameters, %d bytes, cache %d and %d", r.Parameters, r.Bytes, r.KVBytesF32, r.KVBytesBF16)
	}
	if len(r.Types) != 1 || r.Types[0] != (checkpoint.TypeTotal{Stored: "bf16", Tensors: 74, Parameters: 15735168, Bytes: r.Bytes}) {
		t.Errorf("types %+v", r.Types)
	}
}

func TestVerifyDigest(t *testing.T) {
	s := modeltest.Odd()
	dir := write(t, s, 3)
	first, err := checkpoint.Verify(dir)
	check(t, err)
	s.Files = 1
	again, err := checkpoint.Verify(write(t, s, 3))
	check(t, err)
	if first.Digest != again.Digest || first.Hash != again.Hash {
		t.Error("the digest depends on how tensors are split into files")
	}
	// One different byte in a large matrix makes another model.
	c := open(t, dir)
	w, err := c.Tensor(checkpoint.LlamaLayer(1).Gate.Weight)
	check(t, err)
	needle := bytes.Clone(w.Data[5000:5032])
	for _, path := range c.Files() {
		data, err := os.ReadFile(path)
		check(t, err)
		if i := bytes.Index(data, needle); i >= 0 {
			data[i+8] ^= 1
			put(t, path+".new", data)
			check(t, os.Rename(path+".new", path))
		}
	}
	flipped, err := checkpoint.Verify(dir)
	check(t, err)
	if flipped.Digest == first.Digest || flipped.Hash == first.Hash {
		t.Error("a flipped bit: want another digest and another hash")
	}
}

func TestVerifyFindsBadWeights(t *testing.T) {
	dir := write(t, modeltest.Small(), 3)
	path := filepath.Join(dir, "model.safetensors")
	damage(t, path, checkpoint.LlamaLayer(0).FFNNorm, func(data []byte) {
		binary.LittleEndian.PutUint16(data[2*5:], 0x7f80)  // +Inf
		binary.LittleEndian.PutUint16(data[2*63:], 0xffc1) // NaN
	})
	damage(t, path, checkpoint.LlamaLayer(1).Down.Weight, func(data []byte) { clear(data) })
	var calls int
	c := open(t, dir)
	r, err := c.Verify(context.Background(), func(done, total int64) {
		if calls++; done < 1 || done > total {
			t.Errorf("progress %d of %d", done, total)
		}
	})
	check(t, err)
	if err := r.Err(); !errors.Is(err, model.ErrNotFinite) || !strings.Contains(err.Error(), `post_attention_layernorm.weight": 2 elements are NaN`) ||
		!strings.Contains(err.Error(), `1.mlp.down_proj.weight": holds only zeros`) || !strings.Contains(err.Error(), "2 problems") {
		t.Errorf("got %v", err)
	}
	if calls == 0 {
		t.Error("no progress was reported")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// The scan of eight bytes at a time counts like a loop over elements.
func TestVerifyCountsLikeALoop(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		s := modeltest.Odd()
		s.DType = dt
		s.Files = 1
		dir := write(t, s, 3)
		name := checkpoint.LlamaLayer(2).K.Bias
		want := int64(0)
		damage(t, filepath.Join(dir, "model.safetensors"), name, func(data []byte) {
			for i := range data {
				if data[i] = byte(r.Uint32()); r.IntN(3) == 0 {
					data[i] |= 0x7f
				}
			}
		})
		c := open(t, dir)
		w, err := c.Tensor(name)
		check(t, err)
		row := make([]float32, w.Cols())
		w.Row(row, 0, 0, w.Cols())
		for _, v := range row {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				want++
			}
		}
		report, err := c.Verify(context.Background(), nil)
		check(t, err)
		for _, tr := range report.Tensors {
			if tr.Name == name && (tr.NotFinite != want || want == 0) {
				t.Errorf("%v: %d not finite, want %d", dt, tr.NotFinite, want)
			}
		}
	}
}

// damage changes the bytes of a tensor in its file, which is not mapped yet.
func damage(t testing.TB, path, name string, f func(data []byte)) {
	t.Helper()
	c, err := checkpoint.Open(filepath.Dir(path))
	check(t, err)
	w, err := c.Tensor(name)
	check(t, err)
	file, err := os.ReadFile(path)
	check(t, err)
	i := bytes.Index(file, w.Data)
	n := len(w.Data)
	check(t, c.Close())
	f(file[i : i+n])
	put(t, path, file)
}
