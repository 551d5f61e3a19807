// Package loratest writes small LoRA adapters for tests.
package loratest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// Tensor is a matrix of an adapter file, in F32.
type Tensor struct {
	Shape  []int
	Values []float32
}

// Random returns the factors of an adapter for every projection of a dense model, by their names in the
// file. The factors are large enough to change most tokens.
func Random(c *model.Config, rank int, seed uint64) map[string]Tensor {
	r := rand.New(rand.NewPCG(seed, uint64(rank)))
	out := map[string]Tensor{}
	for i := range c.Layers {
		l := c.Layer(i)
		q, kv := c.Heads*l.KV.Dim, l.KV.Heads*l.KV.Dim
		for _, m := range []struct {
			of         model.Linear
			rows, cols int
		}{{l.Q, q, c.Hidden}, {l.K, kv, c.Hidden}, {l.V, kv, c.Hidden}, {l.O, c.Hidden, c.Heads * c.ValueOf(&l)}, {l.Gate, l.FFN, c.Hidden},
			{l.Up, l.FFN, c.Hidden}, {l.Down, c.Hidden, l.FFN}} {
			if m.of.Weight == "" || m.of.First > 0 {
				continue
			}
			name := "base_model.model." + m.of.Weight[:len(m.of.Weight)-len(".weight")]
			out[name+".lora_A.weight"] = random(r, rank, m.cols, 1/math.Sqrt(float64(m.cols)))
			out[name+".lora_B.weight"] = random(r, max(m.rows, m.of.Of), rank, 0.1/math.Sqrt(float64(rank)))
		}
	}
	return out
}

func random(r *rand.Rand, rows, cols int, scale float64) Tensor {
	t := Tensor{[]int{rows, cols}, make([]float32, rows*cols)}
	for i := range t.Values {
		t.Values[i] = float32(r.NormFloat64() * scale)
	}
	return t
}

// Config returns the settings of an adapter of a rank, with others added or replaced.
func Config(rank int, more map[string]any) map[string]any {
	c := map[string]any{"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "base_model_name_or_path": "base"}
	for k, v := range more {
		c[k] = v
	}
	return c
}

// Write writes an adapter to a new or existing folder.
func Write(dir string, config map[string]any, tensors map[string]Tensor) error {
	header, data := map[string]any{}, []byte(nil)
	for name, t := range tensors {
		at := len(data)
		for _, v := range t.Values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		header[name] = map[string]any{"dtype": "F32", "shape": t.Shape, "data_offsets": []int{at, len(data)}}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), text, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), modeltest.File(header, data), 0o600)
}
