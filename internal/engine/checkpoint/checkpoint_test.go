package checkpoint_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

func open(t testing.TB, dir string) *checkpoint.Checkpoint {
	t.Helper()
	c, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func write(t testing.TB, s modeltest.Shape, seed uint64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "m")
	if err := modeltest.Write(dir, s, seed); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Parts are found by their names if the index is missing, in a folder of any name.
func TestPartsWithoutIndex(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `odd [*]\ name`)
	check(t, os.Rename(write(t, modeltest.Small(), 1), dir))
	whole, err := checkpoint.Open(dir)
	check(t, err)
	check(t, whole.Close())
	check(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model-00001-of-00001.safetensors")))
	parts, err := checkpoint.Open(dir)
	check(t, err)
	if parts.Hash() != whole.Hash() {
		t.Errorf("hash %s, of the same tensors in one file %s", parts.Hash(), whole.Hash())
	}
	check(t, parts.Close())
}

func TestOpenReferenceLlama(t *testing.T) {
	c := open(t, "../model/testdata/llama")
	if c.Config.Hidden != 128 || c.Config.KVHeads != 4 || c.Config.HeadDim != 8 || c.Config.Tied || c.Config.DType != tensor.BF16 {
		t.Errorf("config %+v", c.Config)
	}
	if !slices.Equal(c.Config.EOS, []int32{1}) || len(c.Extra()) != 0 || len(c.Files()) != 1 {
		t.Errorf("eos %v, extra %v, files %v", c.Config.EOS, c.Extra(), c.Files())
	}
	w, err := c.Tensor(checkpoint.LlamaLayer(2).K.Weight)
	if err != nil || w.DType != tensor.BF16 || !slices.Equal(w.Shape, []int{32, 128}) || w.Rows() != 32 ||
		w.Cols() != 128 || w.Elements() != 32*128 {
		t.Errorf("%v %v %v", w.DType, w.Shape, err)
	}
}

func TestOpenBundled(t *testing.T) {
	c := open(t, "../../../models/fry")
	if !c.Config.Tied || c.Config.Vocab != 4096 || !slices.Equal(c.Config.EOS, []int32{1, 4}) || c.Config.Rope.Theta != 500000 {
		t.Errorf("config %+v", c.Config)
	}
}

// Every written value is read back, for every shape, type and number of files.
func TestRoundTrip(t *testing.T) {
	for name, shape := range modeltest.Shapes() {
		t.Run(name, func(t *testing.T) {
			c := open(t, write(t, shape, 7))
			if len(c.Files()) != max(1, shape.Files) {
				t.Errorf("%d files", len(c.Files()))
			}
			relative := map[tensor.DType]float64{tensor.F32: 0, tensor.BF16: 1. / 256, tensor.F16: 1. / 1024}
			absolute := map[tensor.DType]float64{tensor.F16: 0x1p-14} // modeltest writes no subnormals
			for _, spec := range c.Config.Tensors() {
				w, err := c.Tensor(spec.Name)
				if err != nil {
					t.Fatal(err)
				}
				want := modeltest.Values(spec, 7)
				row := make([]float32, w.Cols())
				for r := range w.Rows() {
					w.Row(row, r, 0, w.Cols())
					for i, got := range row {
						v := want[r*w.Cols()+i]
						if math.Abs(float64(got-v)) > relative[w.DType]*math.Abs(float64(v))+absolute[w.DType] {
							t.Fatalf("%s[%d,%d] of %v is %g, wrote %g", spec.Name, r, i, w.DType, got, v)
						}
					}
				}
			}
		})
	}
}

func TestOptionalTensors(t *testing.T) {
	c := open(t, write(t, modeltest.Odd(), 1))
	l := checkpoint.LlamaLayer(2)
	for _, name := range []string{l.Q.Bias, l.K.Bias, l.V.Bias, l.O.Bias, l.Gate.Bias, l.Up.Bias, l.Down.Bias, model.Head} {
		if _, err := c.Tensor(name); err != nil {
			t.Error(err)
		}
	}
	c = open(t, write(t, modeltest.Small(), 1))
	for _, name := range []string{checkpoint.LlamaLayer(0).Q.Bias, model.Head, "nonsense"} {
		if _, err := c.Tensor(name); !errors.Is(err, model.ErrMissing) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A model that is split differently is the same model; other weights or another config are not.
func TestHash(t *testing.T) {
	s := modeltest.Odd()
	hash := func(s modeltest.Shape, seed uint64) string { return open(t, write(t, s, seed)).Hash() }
	whole, split := s, s
	whole.Files, split.Files = 1, 4
	h := hash(s, 1)
	if len(h) != 64 || h != hash(s, 1) || h != hash(whole, 1) || h != hash(split, 1) {
		t.Error("the hash depends on more than the model")
	}
	bf, theta := s, s
	bf.DType, theta.Rope.Theta = tensor.BF16, 20000
	for name, other := range map[string]string{"seed": hash(s, 2), "type": hash(bf, 1), "theta": hash(theta, 1)} {
		if other == h {
			t.Errorf("the hash does not change with a different %s", name)
		}
	}
}

func TestConfigWithoutDType(t *testing.T) {
	dir := write(t, modeltest.Small(), 1)
	edit(t, filepath.Join(dir, "config.json"), `"torch_dtype": "bfloat16"`, `"torch_dtype": null`)
	if c := open(t, dir); c.Config.DType != tensor.BF16 {
		t.Errorf("type %v, want the embedding's", c.Config.DType)
	}
}

// All problems are reported together, with file and tensor.
func TestOpenListsProblems(t *testing.T) {
	dir := write(t, modeltest.Odd(), 1)
	edit(t, filepath.Join(dir, "config.json"), `"intermediate_size": 352`, `"intermediate_size": 360`)
	_, err := checkpoint.Open(dir)
	var p *model.Problems
	if !errors.As(err, &p) || !errors.Is(err, model.ErrMismatch) {
		t.Fatalf("got %v", err)
	}
	if len(p.List) != 3*5 { // gate, up, their biases, down
		t.Errorf("%d problems", len(p.List))
	}
	text := err.Error()
	for _, want := range []string{"15 problems", `tensor "model.layers.0.mlp.down_proj.weight": has shape [120 352]; config.json requires [120 360]`, "-of-00003.safetensors", "and 5 more"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n != 11 {
		t.Errorf("%d lines", n+1)
	}

	dir = write(t, modeltest.Small(), 1)
	edit(t, filepath.Join(dir, "config.json"), `"tie_word_embeddings": true`, `"tie_word_embeddings": false`)
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrMissing) || !strings.Contains(err.Error(), `tensor "lm_head.weight": missing; LlamaForCausalLM needs it with shape [256 64]`) {
		t.Errorf("untied without a head: %v", err)
	}
	dir = write(t, modeltest.Odd(), 1)
	edit(t, filepath.Join(dir, "config.json"), `"attention_bias": true`, `"attention_bias": false`)
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrMismatch) || !strings.Contains(err.Error(), `tensor "model.layers.0.self_attn.k_proj.bias": is not part`) {
		t.Errorf("biases that the config denies: %v", err)
	}
	dir = write(t, modeltest.Odd(), 1)
	edit(t, filepath.Join(dir, "config.json"), `"num_hidden_layers": 3`, `"num_hidden_layers": 2`)
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrMismatch) {
		t.Errorf("a layer too many: %v", err)
	}
}

// A tied checkpoint may hold its head, and leftovers of old exports.
func TestExtraTensorsTolerated(t *testing.T) {
	dir := write(t, modeltest.Small(), 1)
	c := open(t, dir)
	e, err := c.Tensor(model.Embedding)
	if err != nil {
		t.Fatal(err)
	}
	header := map[string]any{
		"lm_head.weight": map[string]any{"dtype": "BF16", "shape": e.Shape, "data_offsets": []int{0, len(e.Data)}},
		"model.layers.0.self_attn.rotary_emb.inv_freq": map[string]any{"dtype": "F32", "shape": []int{2},
			"data_offsets": []int{len(e.Data), len(e.Data) + 8}},
		"position_ids": map[string]any{"dtype": "I64", "shape": []int{1}, "data_offsets": []int{len(e.Data) + 8, len(e.Data) + 16}},
	}
	put(t, filepath.Join(dir, "b.safetensors"), modeltest.File(header, append(slices.Clone(e.Data), make([]byte, 16)...)))
	weightMap := `{"weight_map": {"lm_head.weight": "b.safetensors", "model.norm.weight": "a.safetensors"}}`
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "a.safetensors")); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(weightMap))
	more := open(t, dir)
	if got := more.Extra(); !slices.Equal(got, []string{"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "position_ids"}) {
		t.Errorf("extra %v", got)
	}
	if more.Hash() != c.Hash() {
		t.Error("an unused byte changes the hash")
	}
	if _, err := more.Tensor("position_ids"); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("an integer tensor as a weight: %v", err)
	}
}

func TestCloseAndConcurrentReads(t *testing.T) {
	c := open(t, write(t, modeltest.Odd(), 1))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			row := make([]float32, 400)
			for _, s := range c.Config.Tensors() {
				w, err := c.Tensor(s.Name)
				if err != nil {
					t.Error(err)
					return
				}
				w.Row(row, w.Rows()-1, 0, w.Cols())
			}
		})
	}
	wg.Wait()
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := c.Tensor(model.FinalNorm); !errors.Is(err, model.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func edit(t testing.TB, path, old, new string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s holds no %s:\n%s", path, old, data)
	}
	put(t, path, []byte(strings.Replace(string(data), old, new, 1)))
}

func put(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
