package lora

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// WriteRandom writes an adapter with random factors in BF16 for every projection of a dense model, for
// measurements. Adapters with different seeds differ in their IDs.
func WriteRandom(dir string, c *model.Config, rank int, seed uint64) error {
	type entry struct {
		DType  string   `json:"dtype"`
		Shape  [2]int   `json:"shape"`
		Offset [2]int64 `json:"data_offsets"`
	}
	header, size, state := map[string]entry{}, int64(0), seed
	add := func(module, factor string, rows, cols int) {
		n := int64(rows) * int64(cols) * 2
		header["base_model.model."+module+".lora_"+factor+".weight"] = entry{"BF16", [2]int{rows, cols}, [2]int64{size, size + n}}
		size += n
	}
	for i := range c.Layers {
		l := c.Layer(i)
		for _, m := range []struct {
			of         model.Linear
			rows, cols int
		}{{l.Q, c.Heads * l.KV.Dim, c.Hidden}, {l.K, l.KV.Heads * l.KV.Dim, c.Hidden}, {l.V, l.KV.Heads * l.KV.Dim, c.Hidden},
			{l.O, c.Hidden, c.Heads * c.ValueOf(&l)},
			{l.Gate, l.FFN, c.Hidden}, {l.Up, l.FFN, c.Hidden}, {l.Down, c.Hidden, l.FFN}} {
			if m.of.Weight == "" || m.of.First > 0 || l.Experts != nil && m.cols != c.Hidden {
				continue
			}
			module := m.of.Weight[:len(m.of.Weight)-len(".weight")]
			add(module, "A", rank, m.cols)
			add(module, "B", max(m.rows, m.of.Of), rank)
		}
	}
	if len(header) == 0 {
		return fmt.Errorf("lora: %s has no projection that an adapter can change", c.Architecture)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	data := append(binary.LittleEndian.AppendUint64(make([]byte, 0, 8+int64(len(text))+size), uint64(len(text))), text...)
	for range size / 2 {
		state = state*6364136223846793005 + 1442695040888963407
		v := (float32(state>>40)/(1<<24) - 0.5) / 16
		data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
	}
	config, err := json.Marshal(map[string]any{"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "seed": seed})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	for name, text := range map[string][]byte{configFile: config, weightsFile: data} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("lora: %w", err)
		}
	}
	return nil
}
