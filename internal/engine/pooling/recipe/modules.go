package recipe

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Limits of the files of sentence-transformers.
const (
	maxModules = 16
	maxDense   = 256 << 20 // bytes of a dense layer's weights
	maxWidth   = 1 << 16   // elements of a vector
)

// readModules reads the modules.json of sentence-transformers: a transformer, pooling, and later
// modules. An unknown module is refused, because leaving it out would give other vectors.
func readModules(r *Recipe, ck *checkpoint.Checkpoint) (bool, error) {
	var modules []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	if st, err := os.Stat(ck.Dir); err == nil && !st.IsDir() {
		return false, nil // a GGUF file
	}
	file := filepath.Join(ck.Dir, "modules.json")
	if found, err := readSmall(file, &modules); !found {
		return false, err
	}
	if len(modules) == 0 || len(modules) > maxModules {
		return false, bad(file, "%d modules; it must have 1 to %d", len(modules), maxModules)
	}
	r.Source, r.Normalize = "modules.json", false
	for _, m := range modules {
		dir := filepath.Join(ck.Dir, m.Path)
		if m.Path != "" && (m.Path != filepath.Base(m.Path) || m.Path == "..") {
			return false, bad(file, "path %.60q is not the name of a folder in the model's", m.Path)
		}
		var err error
		switch kind := m.Type[strings.LastIndex(m.Type, ".")+1:]; kind {
		case "Transformer":
		case "Pooling":
			err = r.readPooling(dir, ck)
		case "Dense":
			err = r.readDense(dir)
		case "Normalize":
			r.Normalize = true
		case "LogitScore":
			err = r.readLogitScore(dir, ck)
		default:
			err = bad(file, "module %.60q is not supported; known are Transformer, Pooling, Dense, Normalize, LogitScore", m.Type)
		}
		if err != nil {
			return false, err
		}
		if r.Normalize && m != modules[len(modules)-1] {
			return false, bad(file, "Normalize is supported as the last module only")
		}
	}
	return true, r.readPrompts(ck.Dir)
}

// readPooling reads the method, in the form of sentence-transformers 6 or as flags.
func (r *Recipe) readPooling(dir string, ck *checkpoint.Checkpoint) error {
	var c struct {
		Mode    any   `json:"pooling_mode"`
		Include *bool `json:"include_prompt"`
		CLS     bool  `json:"pooling_mode_cls_token"`
		Mean    bool  `json:"pooling_mode_mean_tokens"`
		Last    bool  `json:"pooling_mode_lasttoken"`
		Max     bool  `json:"pooling_mode_max_tokens"`
		Root    bool  `json:"pooling_mode_mean_sqrt_len_tokens"`
		Weighed bool  `json:"pooling_mode_weightedmean_tokens"`
	}
	file := filepath.Join(dir, "config.json")
	if found, err := readSmall(file, &c); err != nil {
		return err
	} else if !found {
		return bad(file, "missing")
	}
	var modes []string
	switch mode := c.Mode.(type) {
	case string:
		modes = []string{mode}
	case []any:
		for _, m := range mode {
			s, _ := m.(string)
			modes = append(modes, s)
		}
	case nil:
		for name, on := range map[string]bool{"cls": c.CLS, "mean": c.Mean, "lasttoken": c.Last, "max": c.Max,
			"mean_sqrt_len_tokens": c.Root, "weightedmean": c.Weighed} {
			if on {
				modes = append(modes, name)
			}
		}
		if slices.Sort(modes); modes == nil {
			modes = []string{"mean"}
		}
	}
	known := map[string]pooling.Method{"cls": pooling.CLS, "mean": pooling.Mean, "lasttoken": pooling.Last}
	if len(modes) != 1 || known[modes[0]] == pooling.None {
		return bad(file, "pooling %.80q is not supported; it must be one of cls, mean, lasttoken", modes)
	}
	if c.Include != nil && !*c.Include {
		return bad(file, "include_prompt false is not supported: the tokens of a prompt are pooled, too")
	}
	r.Pool = known[modes[0]]
	return nil
}

func (r *Recipe) readDense(dir string) error {
	var c struct {
		In         int    `json:"in_features"`
		Out        int    `json:"out_features"`
		Bias       *bool  `json:"bias"`
		Activation string `json:"activation_function"`
		Input      string `json:"module_input_name"`
		Output     string `json:"module_output_name"`
		Residual   bool   `json:"use_residual"`
	}
	file := filepath.Join(dir, "config.json")
	if found, err := readSmall(file, &c); err != nil {
		return err
	} else if !found {
		return bad(file, "missing")
	}
	l := layer{in: c.In, out: c.Out, activation: strings.ToLower(c.Activation[strings.LastIndex(c.Activation, ".")+1:])}
	if l.activation == "" {
		l.activation = "tanh" // the default of sentence-transformers
	}
	const whole = "sentence_embedding"
	switch {
	case l.in < 1 || l.out < 1 || l.in > maxWidth || l.out > maxWidth:
		return bad(file, "%d to %d elements; both must be from 1 to %d", l.in, l.out, maxWidth)
	case activations[l.activation] == nil:
		return bad(file, "activation %.60q is not supported; known are Identity, Tanh, ReLU, Sigmoid", c.Activation)
	case c.Residual || c.Input != "" && c.Input != whole || c.Output != "" && c.Output != whole:
		return bad(file, "a residual layer, or one on other values than %s, is not supported", whole)
	}
	tensors, err := readTensors(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	if l.w, err = matrix(dir, tensors, "linear.weight", l.out, l.in); err != nil {
		return err
	}
	if c.Bias == nil || *c.Bias {
		l.bias, err = matrix(dir, tensors, "linear.bias", l.out)
	}
	r.dense = append(r.dense, l)
	return err
}

// readTensors reads the tensors of a small safetensors file.
func readTensors(path string) (map[string]checkpoint.Tensor, error) {
	data, err := modelfile.Read(path, maxDense)
	if err != nil {
		return nil, bad(path, "%v", err)
	}
	if len(data) < 8 || binary.LittleEndian.Uint64(data) > uint64(min(len(data)-8, safetensors.MaxHeaderBytes)) {
		return nil, bad(path, "not a safetensors file")
	}
	head := int(binary.LittleEndian.Uint64(data))
	body := data[8+head:]
	entries, err := safetensors.Parse(data[8:8+head], int64(len(body)))
	if err != nil {
		return nil, bad(path, "%v", err)
	}
	types := map[string]tensor.DType{"F32": tensor.F32, "BF16": tensor.BF16, "F16": tensor.F16}
	out := map[string]checkpoint.Tensor{}
	for _, e := range entries {
		dt, ok := types[e.Stored]
		if !ok {
			return nil, bad(path, "tensor %q is %s; supported are F32, BF16 and F16", e.Name, e.Stored)
		}
		out[e.Name] = checkpoint.Tensor{Name: e.Name, DType: dt, Shape: e.Shape, Data: body[e.Begin:e.End]}
	}
	return out, nil
}

// matrix reads a tensor of the given shape as float32.
func matrix(dir string, tensors map[string]checkpoint.Tensor, name string, shape ...int) ([]float32, error) {
	t, ok := tensors[name]
	if !ok || !slices.Equal(t.Shape, shape) {
		return nil, bad(dir, "tensor %s has shape %v; it must be %v", name, t.Shape, shape)
	}
	return allOf(t), nil
}

// allOf returns the elements of a tensor.
func allOf(t checkpoint.Tensor) []float32 {
	rows, cols := t.Rows(), t.Cols()
	out := make([]float32, rows*cols)
	for i := range rows {
		t.Row(out[i*cols:], i, 0, cols)
	}
	return out
}

// readLogitScore reads the tokens whose logits are the score.
func (r *Recipe) readLogitScore(dir string, ck *checkpoint.Checkpoint) error {
	var c struct {
		True  *int32 `json:"true_token_id"`
		False *int32 `json:"false_token_id"`
	}
	file := filepath.Join(dir, "config.json")
	if found, err := readSmall(file, &c); err != nil {
		return err
	} else if !found || c.True == nil {
		return bad(file, "true_token_id is missing")
	}
	ids := []int32{*c.True}
	if c.False != nil {
		ids = append(ids, *c.False)
	}
	r.Pool = pooling.Last
	if strings.HasPrefix(ck.Config.Architecture, "Qwen3") {
		r.Pair = qwen3Pair
	}
	return r.logits(ck, ids)
}

// readPrompts reads the texts that go before an input.
func (r *Recipe) readPrompts(dir string) error {
	var c struct {
		Prompts map[string]string `json:"prompts"`
		Default *string           `json:"default_prompt_name"`
	}
	file := filepath.Join(dir, "config_sentence_transformers.json")
	if _, err := readSmall(file, &c); err != nil {
		return err
	}
	if r.Prompts = c.Prompts; c.Default != nil {
		if _, ok := c.Prompts[*c.Default]; !ok {
			return bad(file, "default_prompt_name %.60q is not one of the prompts", *c.Default)
		}
		r.Default = *c.Default
	}
	return nil
}
