// Package modeltest makes small random checkpoints for tests: Hugging Face Llama folders without a
// tokenizer, of any shape that package model accepts.
package modeltest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Shape is the shape of a checkpoint. Zero fields take Small's values. HeadDim 0 means
// Hidden/Heads, and is then left out of config.json.
type Shape struct {
	Hidden, Layers, Heads, KVHeads, HeadDim, FFN, Vocab, MaxPositions int

	Experts       int  // above 0: a Mixtral with this number of experts, 2 per token, without biases
	Untied        bool // with a separate lm_head
	AttentionBias bool // on all four projections, as transformers does
	MLPBias       bool
	DType         tensor.DType // F32 (zero value) or BF16; F16 too
	Mixed         bool         // norms and biases in F32 for every DType
	Files         int          // number of safetensors files; above 1 there is an index
	Rope          rotary.Rope  // Theta 0: 10000
}

// Small returns a small tied model: 2 layers, 4 heads of 16 sharing 2 KV heads.
func Small() Shape {
	return Shape{Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, FFN: 128, Vocab: 256, MaxPositions: 512, DType: tensor.BF16}
}

// Odd has no size that is a power of two or a multiple of another: it finds code that assumes that.
func Odd() Shape {
	return Shape{Hidden: 120, Layers: 3, Heads: 9, KVHeads: 3, HeadDim: 24, FFN: 352, Vocab: 331, MaxPositions: 640,
		Untied: true, AttentionBias: true, MLPBias: true, DType: tensor.F32, Files: 3}
}

// Shapes are named cases for table tests across the project.
func Shapes() map[string]Shape {
	half := Small()
	half.DType, half.Mixed = tensor.F16, true
	scaled := Small()
	scaled.Untied, scaled.Files, scaled.KVHeads = true, 2, 1
	scaled.Rope = rotary.Rope{Theta: 500000, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 64}
	linear := Odd()
	linear.AttentionBias, linear.Files, linear.DType = false, 1, tensor.BF16
	linear.Rope = rotary.Rope{Theta: 10000, Type: "linear", Factor: 2.5}
	mixture := Small()
	mixture.Experts, mixture.FFN = 5, 48
	return map[string]Shape{"mixture": mixture, "small": Small(), "odd": Odd(), "half": half, "scaled": scaled, "linear": linear}
}

func (s Shape) filled() Shape {
	small := Small()
	for _, f := range []struct{ v, def *int }{
		{&s.Hidden, &small.Hidden}, {&s.Layers, &small.Layers}, {&s.Heads, &small.Heads}, {&s.KVHeads, &small.KVHeads},
		{&s.FFN, &small.FFN}, {&s.Vocab, &small.Vocab}, {&s.MaxPositions, &small.MaxPositions},
	} {
		if *f.v == 0 {
			*f.v = *f.def
		}
	}
	if s.Rope.Theta == 0 {
		s.Rope.Theta = 10000
	}
	s.Files = max(s.Files, 1)
	return s
}

// Write creates dir and a checkpoint in it. The same shape and seed give the same bytes; a tensor's
// values depend on seed, name and shape alone. Token 0 begins a sequence, token 1 ends one.
func Write(dir string, s Shape, seed uint64) error {
	s = s.filled()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	config := s.config()
	generation := []byte(`{"bos_token_id": 0, "eos_token_id": [1], "do_sample": false}` + "\n")
	c, err := model.ParseConfig(dir, config, generation)
	if err != nil {
		return fmt.Errorf("modeltest: the shape is not a valid model: %w", err)
	}
	for name, data := range map[string][]byte{"config.json": config, "generation_config.json": generation} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return s.writeWeights(dir, c.Tensors(), seed)
}

func (s Shape) config() []byte {
	c := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_act": "silu",
		"hidden_size": s.Hidden, "num_hidden_layers": s.Layers, "num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads,
		"intermediate_size": s.FFN, "vocab_size": s.Vocab, "max_position_embeddings": s.MaxPositions, "rms_norm_eps": 1e-5,
		"tie_word_embeddings": !s.Untied, "attention_bias": s.AttentionBias, "mlp_bias": s.MLPBias,
		"bos_token_id": 0, "eos_token_id": 1, "rope_theta": s.Rope.Theta,
		"torch_dtype": map[tensor.DType]string{tensor.F32: "float32", tensor.BF16: "bfloat16", tensor.F16: "float16"}[s.DType],
	}
	if s.HeadDim != 0 {
		c["head_dim"] = s.HeadDim
	}
	if s.Experts > 0 {
		c["architectures"], c["model_type"], c["num_local_experts"] = []string{"MixtralForCausalLM"}, "mixtral", s.Experts
	}
	switch s.Rope.Type {
	case "linear":
		c["rope_scaling"] = map[string]any{"type": "linear", "factor": s.Rope.Factor}
	case "llama3":
		c["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": s.Rope.Factor, "low_freq_factor": s.Rope.LowFreq,
			"high_freq_factor": s.Rope.HighFreq, "original_max_position_embeddings": s.Rope.OriginalMax}
	}
	data, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		panic(err) // plain values
	}
	return append(data, '\n')
}

// writeWeights distributes the tensors over the files in turn, so that a layer's tensors are in
// different files.
func (s Shape) writeWeights(dir string, specs []model.Spec, seed uint64) error {
	if s.Files == 1 {
		return s.WriteFile(filepath.Join(dir, "model.safetensors"), specs, seed)
	}
	where, total := map[string]string{}, 0
	for i := range s.Files {
		var mine []model.Spec
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, s.Files)
		for j := i; j < len(specs); j += s.Files {
			mine = append(mine, specs[j])
			where[specs[j].Name] = name
			total += elements(specs[j].Shape)
		}
		if err := s.WriteFile(filepath.Join(dir, name), mine, seed); err != nil {
			return err
		}
	}
	index, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_parameters": total}, "weight_map": where}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), append(index, '\n'), 0o644)
}

// WriteFile writes tensors of those specs, with the elements of Values, in s.DType.
func (s Shape) WriteFile(path string, specs []model.Spec, seed uint64) error {
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var data []byte
	for _, spec := range specs {
		dt, begin := s.DType, len(data)
		if s.Mixed && len(spec.Shape) == 1 {
			dt = tensor.F32
		}
		for _, v := range Values(spec, seed) {
			data = appendElement(data, dt, v)
		}
		header[spec.Name] = map[string]any{"dtype": map[tensor.DType]string{tensor.F32: "F32", tensor.BF16: "BF16", tensor.F16: "F16"}[dt],
			"shape": spec.Shape, "data_offsets": []int{begin, len(data)}}
	}
	return os.WriteFile(path, File(header, data), 0o644)
}

// File returns a safetensors file with a header, which is marshalled, and a data section. It checks
// nothing, so that tests can make invalid files too.
func File(header any, data []byte) []byte {
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // a test's own literal
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(out, text...), data...)
}

// Values draws the elements of one tensor: matrices from a normal distribution that keeps the scale
// of their input (the embedding: 1), vectors near 1 for norms and near 0 for biases.
func Values(spec model.Spec, seed uint64) []float32 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %v", spec.Name, spec.Shape)
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	scale, mean := 0.1, 0.0
	switch {
	case spec.Name == model.Embedding:
		scale = 1
	case len(spec.Shape) > 1:
		scale = 1 / math.Sqrt(float64(spec.Shape[1]))
	case filepath.Ext(spec.Name) != ".bias":
		mean = 1
	}
	out := make([]float32, elements(spec.Shape))
	for i := range out {
		out[i] = float32(mean + float64(scale*r.NormFloat64()))
	}
	return out
}

func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// appendElement rounds to nearest even for BF16 and, for F16, toward zero in the normal range
// (smaller magnitudes become zero). Any value of the type is acceptable here.
func appendElement(data []byte, dt tensor.DType, v float32) []byte {
	b := math.Float32bits(v)
	switch dt {
	case tensor.F32:
		return binary.LittleEndian.AppendUint32(data, b)
	case tensor.BF16:
		return binary.LittleEndian.AppendUint16(data, uint16((b+0x7fff+(b>>16&1))>>16))
	case tensor.F16:
		sign, exp := uint16(b>>16)&0x8000, int(b>>23&0xff)-127+15
		if exp <= 0 {
			return binary.LittleEndian.AppendUint16(data, sign)
		}
		return binary.LittleEndian.AppendUint16(data, sign|uint16(min(exp, 30))<<10|uint16(b>>13)&0x3ff)
	}
	panic(fmt.Sprintf("modeltest: no weights of type %v", dt))
}

// Parts splits a safetensors file of this package.
func Parts(file []byte) (header map[string]any, data []byte) {
	n := 8 + binary.LittleEndian.Uint64(file)
	if err := json.Unmarshal(file[8:n], &header); err != nil {
		panic(err) // the file is part of this package
	}
	return header, file[n:]
}
