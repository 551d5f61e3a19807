package checkpoint_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// convert writes the checkpoint as a .gguf file and opens it.
func convert(t testing.TB, c *checkpoint.Checkpoint, typ func(string) gguf.Type) *checkpoint.Checkpoint {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	put(t, path, modeltest.Convert(c, typ).Bytes())
	return open(t, path)
}

func always(typ gguf.Type) func(string) gguf.Type { return func(string) gguf.Type { return typ } }

// A GGUF file of the same weights is the same model: config, rotary frequencies and every element
// of every tensor.
func TestGGUFIsTheSameModel(t *testing.T) {
	dirs := map[string]string{}
	for _, name := range []string{"llama", "qwen2", "qwen3", "mistral", "mistral_window", "mixtral", "qwen3_moe",
		"granite", "gpt_oss", "olmo2", "exaone4", "seed_oss", "hunyuan_v1_dense", "cohere", "cohere_qk_norm", "cohere2",
		"gemma", "gemma2", "gemma3", "gemma4_31b", "gemma4_e2b", "gemma4_26b", "phi3", "phi3_longrope", "deepseek_v3",
		"smollm3", "qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "lfm2_moe", "granite_hybrid", "granite_hybrid_moe",
		"glm4", "ernie4_5", "mistral3", "minimax_m2", "olmoe", "granitemoe", "ernie4_5_moe", "hunyuan_v1_moe", "glm4_moe", "llama4",
	} {
		dirs[name] = filepath.Join("../model/testdata", name)
	}
	dirs["deepseek_v2"] = t.TempDir()
	check(t, modeltest.SameMScale("../model/testdata/deepseek_v2", dirs["deepseek_v2"]))
	for name, s := range modeltest.Shapes() {
		dirs[name] = write(t, s, 3)
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			hub := open(t, dir)
			got := convert(t, hub, always(gguf.F32))
			want := hub.Config
			if want.Architecture == "MistralForCausalLM" && want.Windows == nil {
				want.Architecture = "LlamaForCausalLM" // the same without a window
			}
			if want.Chunked { // llama.cpp fixes the chunks, which are longer than this context
				want.Chunked, want.Windows, want.Growth.Original = false, nil, 8192
			}
			want.DType, want.Rope, want.NormsAddOne = tensor.F32, got.Config.Rope, false
			if got, want := got.Config.AttentionScale(), hub.Config.AttentionScale(); got != want {
				t.Errorf("scores are scaled by %v, want %v", got, want)
			}
			want.QueryScale, want.Delta.Negated = got.Config.QueryScale, got.Config.Delta.Negated
			if hub.Config.ScaledEmbedding {
				want.TrainedAs = tensor.BF16
			}
			if fmt.Sprintf("%+v", got.Config) != fmt.Sprintf("%+v", want) {
				t.Errorf("config\n%+v\nwant\n%+v", got.Config, want)
			}
			for r, f := range hub.Config.Rotations() {
				g := got.Config.Rotations()[r]
				for i := range f.Freq {
					if math.Abs(f.Freq[i]-g.Freq[i]) > 1e-7*f.Freq[i] {
						t.Errorf("rotation %d, frequency %d is %g, want %g", r, i, g.Freq[i], f.Freq[i])
					}
				}
			}
			if a, b := hub.Config.Rope, got.Config.Rope; float32(a.Amplitude) != float32(b.Amplitude) || a.MScaleAll != b.MScaleAll {
				t.Errorf("scaling %+v, want %+v", b, a)
			}
			for _, spec := range hub.Config.Tensors() {
				if hub.Config.NormsAddOne && strings.HasSuffix(spec.Name, "norm.weight") || strings.HasSuffix(spec.Name, "A_log") {
					continue // see TestGGUFNorms, and Delta.Negated
				}
				equalTensors(t, hub, got, spec.Name, 0)
			}
			if extra := got.Extra(); len(extra) != 0 {
				t.Errorf("extra %v", extra)
			}
			if r, err := checkpoint.Verify(got.Files()[0]); err != nil || r.Err() != nil || r.Types[0].Stored != "f32" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// equalTensors allows a difference of a number of steps of a row's range.
func equalTensors(t *testing.T, a, b *checkpoint.Checkpoint, name string, steps float64) {
	t.Helper()
	x, err := a.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Tensor(name)
	if err != nil || fmt.Sprint(x.Shape) != fmt.Sprint(y.Shape) {
		t.Fatalf("%s: %v, %v, %v", name, x.Shape, y.Shape, err)
	}
	p, q := make([]float32, x.Cols()), make([]float32, x.Cols())
	stride := 1
	if x.Rows() > 128 { // check every row of the heads' projections
		stride = 7
	}
	for r := 0; r < x.Rows(); r += stride {
		x.Row(p, r, 0, len(p))
		y.Row(q, r, 0, len(q))
		top := float32(0)
		for _, v := range p {
			top = max(top, v, -v)
		}
		for i := range p {
			if math.Abs(float64(p[i]-q[i])) > steps*float64(top) {
				t.Fatalf("%s[%d,%d] is %g, want %g", name, r, i, q[i], p[i])
			}
		}
	}
}

// DeepSeek files from before 2025 hold the latent's projections unsplit and give the widths of the
// heads. Files from before V3 do not name the scoring of experts.
func TestGGUFOlderDeepseek(t *testing.T) {
	for _, name := range []string{"deepseek_v2", "deepseek_v3"} {
		dir := t.TempDir()
		check(t, modeltest.SameMScale(filepath.Join("../model/testdata", name), dir))
		hub := open(t, dir)
		g := modeltest.Convert(hub, always(gguf.F32))
		file, err := gguf.Parse(g.Bytes())
		check(t, err)
		old, l := clone(g), hub.Config.Latent
		cut(old, 1<<30)
		old.Table = nil
		for _, x := range file.Tensors {
			if !strings.Contains(x.Name, "attn_k_b") && !strings.Contains(x.Name, "attn_v_b") {
				old.Add(x.Name, x.Type, x.Shape, x.Data)
			}
		}
		for i := range hub.Config.Layers {
			x, err := hub.Tensor(hub.Config.Layer(i).Latent.KVUp.Weight)
			check(t, err)
			all := make([]float32, x.Elements())
			for r := range x.Rows() {
				x.Row(all[r*x.Cols():(r+1)*x.Cols()], r, 0, x.Cols())
			}
			old.Add(fmt.Sprintf("blk.%d.attn_kv_b.weight", i), gguf.F32, x.Shape, modeltest.Quantize(gguf.F32, all))
		}
		for key, v := range map[string]any{"attention.key_length": l.Nope + l.Rope, "attention.value_length": l.Value,
			"attention.head_count_kv":  hub.Config.Heads,
			"attention.key_length_mla": nil, "attention.value_length_mla": nil} {
			old.Unset("deepseek2." + key)
			if v != nil {
				old.Set("deepseek2."+key, v)
			}
		}
		if name == "deepseek_v2" {
			old.Unset("deepseek2.expert_gating_func")
		}
		path := filepath.Join(t.TempDir(), "old.gguf")
		put(t, path, old.Bytes())
		got, newer := open(t, path), convert(t, hub, always(gguf.F32))
		if fmt.Sprintf("%+v", got.Config) != fmt.Sprintf("%+v", newer.Config) {
			t.Errorf("config\n%+v\nwant\n%+v", got.Config, newer.Config)
		}
		for _, spec := range hub.Config.Tensors() {
			equalTensors(t, hub, got, spec.Name, 0)
		}
		lost := clone(g)
		for i, e := range lost.Table {
			if e.Name == "blk.1.attn_v_b.weight" {
				lost.Table[i].Name = "blk.1.attn_v_c.weight"
			}
		}
		put(t, path, lost.Bytes())
		if _, err := checkpoint.Open(path); !errors.Is(err, model.ErrMissing) || !strings.Contains(err.Error(), `tensor "blk.1.attn_v_b.weight": missing, but`) {
			t.Errorf("one half alone: %v", err)
		}
	}
}

// Norms of Gemma include their 1 in a GGUF file.
func TestGGUFNorms(t *testing.T) {
	hub := open(t, "../model/testdata/gemma3")
	got := convert(t, hub, always(gguf.F32))
	for _, name := range []string{model.FinalNorm, hub.Config.Layer(1).PostFFNNorm, hub.Config.Layer(0).QNorm} {
		a, _ := hub.Tensor(name)
		b, err := got.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		p, q := make([]float32, a.Cols()), make([]float32, a.Cols())
		a.Row(p, 0, 0, len(p))
		b.Row(q, 0, 0, len(q))
		for i := range p {
			if q[i] != p[i]+1 {
				t.Fatalf("%s[%d] is %g, want 1 + %g", name, i, q[i], p[i])
			}
		}
	}
}

// Quantized files approximate their original weights, and are held in the type that fits.
func TestGGUFTypes(t *testing.T) {
	shape := modeltest.Small()
	shape.Hidden, shape.FFN, shape.Layers, shape.Vocab = 256, 256, 1, 64
	hub := open(t, write(t, shape, 5))
	for _, test := range []struct {
		typ  gguf.Type
		held tensor.DType
		off  float64
	}{
		{gguf.F16, tensor.F16, 1e-3}, {gguf.BF16, tensor.BF16, 0}, {gguf.Q8_0, tensor.Q8_0, 1. / 200}, {gguf.Q4_0, tensor.Q8_0, 1. / 7},
		{gguf.Q4_K, tensor.Q8_0, 1. / 7}, {gguf.Q5_K, tensor.Q8_0, 1. / 14}, {gguf.Q6_K, tensor.Q8_0, 1. / 28},
	} {
		got := convert(t, hub, always(test.typ))
		if got.Config.DType != test.held {
			t.Errorf("%v is held as %v, want %v", test.typ, got.Config.DType, test.held)
		}
		for _, spec := range hub.Config.Tensors() {
			off := test.off
			if len(spec.Shape) == 1 {
				off = 0
			}
			equalTensors(t, hub, got, spec.Name, off)
		}
		r, err := checkpoint.Verify(got.Files()[0])
		if err != nil || r.Err() != nil || r.Types[0].Stored != strings.ToLower(test.typ.String()) || r.Parameters != hubParameters(hub) {
			t.Errorf("%v: %+v, %v", test.typ, r, err)
		}
	}
}

// The halves of the latent's projections may have two types, and each counts with its own.
func TestGGUFHalvesOfTwoTypes(t *testing.T) {
	hub := open(t, "../model/testdata/deepseek_v3")
	got := convert(t, hub, func(name string) gguf.Type {
		if strings.Contains(name, "kv_b") {
			return gguf.Q8_0
		}
		return gguf.F32
	})
	name := hub.Config.Layer(1).Latent.KVUp.Weight
	equalTensors(t, hub, got, name, 1./200)
	if x, err := got.Tensor(name); err != nil || x.DType != tensor.Q8_0 || x.Stored() != "q8_0" {
		t.Errorf("held as %v, stored as %s, %v", x.DType, x.Stored(), err)
	}
	l, c := hub.Config.Latent, hub.Config
	want := int64(c.Heads*l.Rank*l.Nope*4 + c.Heads*l.Value*l.Rank/32*34)
	r, err := checkpoint.Verify(got.Files()[0])
	if err != nil || r.Err() != nil || r.Parameters != hubParameters(hub) {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, x := range r.Tensors {
		if x.Name == name && x.Bytes != want {
			t.Errorf("%d bytes, want %d", x.Bytes, want)
		}
	}
}

func hubParameters(c *checkpoint.Checkpoint) (n int64) {
	for _, s := range c.Config.Tensors() {
		t, _ := c.Tensor(s.Name)
		n += t.Elements()
	}
	return n
}

// Which file a path means.
func TestGGUFPaths(t *testing.T) {
	hub := open(t, write(t, modeltest.Small(), 1))
	data := modeltest.Convert(hub, always(gguf.F32)).Bytes()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "README.md"), []byte("x"))
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrNoCheckpoint) {
		t.Errorf("a folder of neither: %v", err)
	}
	put(t, filepath.Join(dir, "a.gguf"), data)
	one := open(t, dir)
	if files := one.Files(); len(files) != 1 || filepath.Base(files[0]) != "a.gguf" || one.Dir != dir {
		t.Errorf("%v in %s", files, one.Dir)
	}
	if file := open(t, filepath.Join(dir, "a.gguf")); file.Hash() != one.Hash() {
		t.Error("the file and its folder differ")
	}
	pulled := filepath.Join(t.TempDir(), "random:8b.gguf") // ollama://random:8b
	put(t, pulled, data)
	if other := open(t, pulled); other.Hash() != one.Hash() {
		t.Error("a file whose name begins like that of random weights differs")
	}
	put(t, filepath.Join(dir, "b.gguf"), data)
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrNoCheckpoint) ||
		!strings.Contains(err.Error(), "holds 2 .gguf files (a.gguf, b.gguf") {
		t.Errorf("a folder of two: %v", err)
	}
	both := write(t, modeltest.Small(), 1)
	put(t, filepath.Join(both, "a.gguf"), []byte("no"))
	if c := open(t, both); len(c.Files()) != 1 || filepath.Base(c.Files()[0]) != "model.safetensors" {
		t.Errorf("config.json does not decide: %v", c.Files())
	}
	if _, err := checkpoint.Open(filepath.Join(dir, "c.gguf")); !errors.Is(err, model.ErrMissing) {
		t.Error(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d.gguf"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.Open(filepath.Join(dir, "d.gguf")); !errors.Is(err, model.ErrNoCheckpoint) {
		t.Error(err)
	}
}

// Settings of a well-formed file that are not implemented are refused, with the name of the key or
// tensor.
func TestGGUFRefused(t *testing.T) {
	hub := open(t, write(t, modeltest.Small(), 1))
	f32 := make([]byte, 4*16)
	for _, test := range []struct {
		name   string
		damage func(*modeltest.GGUF)
		kind   error
		want   string
	}{
		{"experts without a number", func(g *modeltest.GGUF) { g.Set("llama.expert_count", 8) }, model.ErrMissing, `field "llama.expert_used_count": missing`},
		{"experts without tensors", func(g *modeltest.GGUF) {
			g.Set("llama.expert_count", 8)
			g.Set("llama.expert_used_count", 2)
		}, model.ErrMissing, `block_sparse_moe.experts.0.w1.weight": missing`},
		{"too many experts", func(g *modeltest.GGUF) { g.Set("llama.expert_count", 1<<20) }, model.ErrFormat, `field "llama.expert_count"`},
		{"more chosen than there are", func(g *modeltest.GGUF) {
			g.Set("llama.expert_count", 4)
			g.Set("llama.expert_used_count", 5)
		}, model.ErrFormat, `field "llama.expert_used_count": 5 of 4`},
		{"a stack of another number", func(g *modeltest.GGUF) {
			g.Set("llama.expert_count", 4)
			g.Set("llama.expert_used_count", 2)
			g.Add("blk.0.ffn_up_exps.weight", gguf.F32, []int{2, 2, 4}, f32)
		}, model.ErrMismatch, `tensor "blk.0.ffn_up_exps.weight": has shape [2 2 4]`},
		{"a flat stack", func(g *modeltest.GGUF) {
			g.Set("llama.expert_count", 4)
			g.Set("llama.expert_used_count", 2)
			g.Add("blk.0.ffn_up_exps.weight", gguf.F32, []int{4, 4}, f32)
		}, model.ErrMismatch, `has shape [4 4]`},
		{"a stack in a dense model", func(g *modeltest.GGUF) {
			g.Add("blk.0.ffn_up_exps.weight", gguf.F32, []int{2, 2, 4}, f32)
		}, model.ErrMismatch, "blk.0.ffn_up_exps.weight"},
		{"no experts", func(g *modeltest.GGUF) { g.Set("llama.expert_count", 0) }, nil, ""},
		{"unknown setting", func(g *modeltest.GGUF) { g.Set("llama.attention.softcap", float32(50)) }, model.ErrUnsupported, `field "llama.attention.softcap": is 50`},
		{"another family's setting", func(g *modeltest.GGUF) { g.Set("gemma2.attention.softcap", float32(50)) }, nil, ""},
		{"yarn", func(g *modeltest.GGUF) { g.Set("llama.rope.scaling.type", "yarn") }, model.ErrUnsupported, `"yarn" is not supported`},
		{"linear without factor", func(g *modeltest.GGUF) { g.Set("llama.rope.scaling.type", "linear") },
			model.ErrOutOfRange, "rope.scaling.factor"},
		{"window", func(g *modeltest.GGUF) { g.Set("llama.attention.sliding_window", 64) }, nil, ""},
		{"split", func(g *modeltest.GGUF) { g.Set("split.count", 3) }, model.ErrUnsupported, "part 1 of 3 by its metadata, 1 of 1 by its name"},
		{"a tensor more", func(g *modeltest.GGUF) { g.Add("blk.0.attn_sinks.weight", gguf.F32, []int{16}, f32) }, model.ErrMismatch, `tensor "blk.0.attn_sinks.weight": is not part`},
		{"a bias more", func(g *modeltest.GGUF) { g.Add("blk.1.attn_q.bias", gguf.F32, []int{64}, make([]byte, 256)) },
			model.ErrMismatch, "q_proj.bias"},
		{"a layer more", func(g *modeltest.GGUF) { g.Add("blk.2.attn_norm.weight", gguf.F32, []int{64}, make([]byte, 256)) },
			model.ErrMismatch, "layers.2"},
		{"a second name", func(g *modeltest.GGUF) {
			g.Add("model.norm.weight", gguf.F32, []int{64}, make([]byte, 256))
		}, model.ErrFormat, "is a second model.norm.weight"},
		{"factors of another width", func(g *modeltest.GGUF) { g.Add("rope_freqs.weight", gguf.F32, []int{16}, f32) },
			model.ErrMismatch, "8 frequencies want"},
		{"factors of zero", func(g *modeltest.GGUF) { g.Add("rope_freqs.weight", gguf.F32, []int{8}, f32[:32]) },
			model.ErrOutOfRange, "element 0 is 0"},
		{"eos outside", func(g *modeltest.GGUF) { g.Set("tokenizer.ggml.eot_token_id", 4000) }, nil, `field "tokenizer.ggml.eos_token_id": token 4000 is outside`},
		{"tokens of numbers", func(g *modeltest.GGUF) { g.Set("tokenizer.ggml.tokens", []int32{1}) }, model.ErrFormat, "tokenizer.ggml.tokens"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := modeltest.Convert(hub, always(gguf.F32))
			test.damage(g)
			path := filepath.Join(t.TempDir(), "m.gguf")
			put(t, path, g.Bytes())
			c, err := checkpoint.Open(path)
			if c != nil {
				defer c.Close()
			}
			if test.kind == nil {
				if err != nil {
					t.Error(err)
				}
				if warned := fmt.Sprint(c.Config.Warnings); !strings.Contains(warned, test.want) {
					t.Errorf("warnings %s, want one with %q", warned, test.want)
				}
				if test.name == "window" && (c.Config.Window(0) != 64 || c.Config.Architecture != "MistralForCausalLM") {
					t.Errorf("%+v", c.Config)
				}
				return
			}
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "model: ") {
				t.Errorf("got %v\nwant %q (%v)", err, test.want, test.kind)
			}
		})
	}
}

// Metadata alone, in a file of one tensor.
func TestGGUFMetadata(t *testing.T) {
	for _, test := range []struct {
		name string
		set  map[string]any
		kind error
		want string
	}{
		{"no architecture", map[string]any{"general.architecture": nil}, model.ErrUnknownArch, `architecture "" is not supported; known: bert, cohere2, `},
		{"another", map[string]any{"general.architecture": "gemma9"}, model.ErrUnsupported, `"gemma9" is not supported`},
		{"not a name", map[string]any{"general.architecture": 3}, model.ErrFormat, "is not a string"},
		{"no layers", map[string]any{"llama.block_count": nil}, model.ErrMissing, `field "llama.block_count": missing`},
		{"no width", map[string]any{"llama.embedding_length": nil}, model.ErrMissing, `"llama.embedding_length": missing`},
		{"no eps", map[string]any{"llama.attention.layer_norm_rms_epsilon": nil}, model.ErrMissing, "layer_norm_rms_epsilon"},
		{"no context", map[string]any{"llama.context_length": nil}, model.ErrMissing, "context_length"},
		{"huge", map[string]any{"llama.block_count": uint64(1 << 63)}, model.ErrFormat, `"llama.block_count"`},
		{"large", map[string]any{"llama.feed_forward_length": 1 << 30}, model.ErrOutOfRange, `"llama.feed_forward_length": 1073741824 is outside`},
		{"negative", map[string]any{"llama.attention.head_count": int32(-4)}, model.ErrOutOfRange, `"llama.attention.head_count": -4 is outside`},
		{"heads by layer", map[string]any{"llama.attention.head_count": []int32{4, 2}}, model.ErrUnsupported,
			"2 values of int32 (array) is not one number for all layers"},
		{"heads, the same by layer", map[string]any{"llama.attention.head_count": []int32{4, 4}},
			model.ErrMissing, "q_proj.weight\": missing; LlamaForCausalLM needs it with shape [64 64]"},
		{"text", map[string]any{"llama.rope.freq_base": "10000"}, model.ErrFormat, "rope.freq_base"},
		{"NaN", map[string]any{"llama.attention.layer_norm_rms_epsilon": float32(math.NaN())}, model.ErrOutOfRange, "NaN"},
		{"values of another width", map[string]any{"llama.attention.value_length": 8}, model.ErrUnsupported, "value_length"},
		{"half rotated", map[string]any{"llama.rope.dimension_count": 8}, model.ErrUnsupported, "rope.dimension_count"},
		{"vocabulary", map[string]any{"llama.vocab_size": 5}, model.ErrUnsupported, "vocab_size"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := &modeltest.GGUF{}
			for _, kv := range []struct {
				key string
				v   any
			}{{"general.architecture", "llama"}, {"llama.block_count", 2}, {"llama.embedding_length", 64}, {"llama.context_length", 512},
				{"llama.feed_forward_length", 128}, {"llama.attention.head_count", 4}, {"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
				{"llama.rope.freq_base", float32(10000)}, {"llama.attention.value_length", 16},
				{"llama.rope.dimension_count", 16}, {"llama.vocab_size", 6}} {
				v, ok := test.set[kv.key]
				if !ok {
					v = kv.v
				}
				if v != nil {
					g.Set(kv.key, v)
				}
			}
			g.Add("token_embd.weight", gguf.F32, []int{6, 64}, make([]byte, 4*6*64))
			path := filepath.Join(t.TempDir(), "m.gguf")
			put(t, path, g.Bytes())
			_, err := checkpoint.Open(path)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %q (%v)", err, test.want, test.kind)
			}
		})
	}
}

// A model in parts equals the model in one file.
func TestGGUFSplit(t *testing.T) {
	hub := open(t, "../model/testdata/qwen2")
	whole := convert(t, hub, always(gguf.F32))
	dir := t.TempDir()
	part := func(i, n int) string { return filepath.Join(dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i, n)) }
	files := splitGGUF(modeltest.Convert(hub, always(gguf.F32)), 3)
	for i, f := range files {
		put(t, part(i+1, 3), f.Bytes())
	}
	for _, path := range []string{dir, part(1, 3), part(2, 3)} {
		c := open(t, path)
		if len(c.Files()) != 3 || c.Hash() != whole.Hash() {
			t.Errorf("%s: files %v, hash %s, want %s", path, c.Files(), c.Hash(), whole.Hash())
		}
	}
	put(t, part(2, 3), files[2].Bytes())
	if _, err := checkpoint.Open(part(1, 3)); !errors.Is(err, model.ErrUnsupported) ||
		!strings.Contains(err.Error(), "part 3 of 3 by its metadata, 2 of 3 by its name") {
		t.Error(err)
	}
	check(t, os.Remove(part(2, 3)))
	if _, err := checkpoint.Open(part(1, 3)); !errors.Is(err, model.ErrMissing) ||
		!strings.Contains(err.Error(), "m-00002-of-00003.gguf: no such file") {
		t.Error(err)
	}
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrNoCheckpoint) || !strings.Contains(err.Error(), "part 2 of 3 is missing") {
		t.Error(err)
	}
}

// Qwen3.5 in GGUF: the block of multi-token prediction is dropped, other further blocks are refused,
// and so are value heads that do not divide the values.
func TestGGUFQwen35(t *testing.T) {
	hub := open(t, "../model/testdata/qwen3_5")
	try := func(change func(g *modeltest.GGUF)) (*checkpoint.Checkpoint, error) {
		g := modeltest.Convert(hub, always(gguf.F32))
		change(g)
		path := filepath.Join(t.TempDir(), "m.gguf")
		put(t, path, g.Bytes())
		return checkpoint.Open(path)
	}
	further := func(g *modeltest.GGUF, name string) {
		g.Add(name, gguf.F32, []int{64}, modeltest.Quantize(gguf.F32, make([]float32, 64)))
	}
	c, err := try(func(g *modeltest.GGUF) {
		g.Unset("qwen35.block_count")
		g.Set("qwen35.block_count", 9)
		g.Set("qwen35.nextn_predict_layers", 1)
		further(g, "blk.8.nextn.enorm.weight")
		further(g, "blk.8.attn_norm.weight")
		further(g, "blk.8.unknown.weight")
	})
	if err != nil || c.Config.Layers != 8 || len(c.Extra()) != 0 {
		t.Fatalf("with a block of multi-token prediction: %v", err)
	}
	check(t, c.Close())
	for name, change := range map[string]func(g *modeltest.GGUF){
		"model.layers.8.input_layernorm.weight":  func(g *modeltest.GGUF) { further(g, "blk.8.attn_norm.weight") },
		"model.layers.0.self_attn.k_proj.weight": func(g *modeltest.GGUF) { further(g, "blk.0.attn_k.weight") },
		"ssm.inner_size": func(g *modeltest.GGUF) {
			g.Unset("qwen35.ssm.inner_size")
			g.Set("qwen35.ssm.inner_size", 65)
		},
		"nextn_predict_layers": func(g *modeltest.GGUF) { g.Set("qwen35.nextn_predict_layers", 8) },
		"ssm.group_count":      func(g *modeltest.GGUF) { g.Unset("qwen35.ssm.group_count") },
	} {
		if _, err := try(change); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
