package modeltest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// FP8 writes the checkpoint twice. In quantized, every matrix of a layer except the routers' is in
// FP8 with a float32 scale for every rows x cols block, as DeepSeek publishes it. In plain, the
// same numbers are in F32.
func FP8(c *checkpoint.Checkpoint, rows, cols int, quantized, plain string) error {
	var q, p []byte
	qh, ph := map[string]any{}, map[string]any{}
	add := func(header map[string]any, data *[]byte, name, dtype string, shape []int, b []byte) {
		header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int{len(*data), len(*data) + len(b)}}
		*data = append(*data, b...)
	}
	for _, spec := range c.Config.Tensors() {
		t, err := c.Tensor(spec.Name)
		if err != nil {
			return err
		}
		height, width := t.Rows(), t.Cols()
		v := make([]float32, height*width)
		for r := range height {
			t.Row(v[r*width:(r+1)*width], r, 0, width)
		}
		if len(spec.Shape) == 2 && strings.HasPrefix(spec.Name, "model.layers.") && !strings.HasSuffix(spec.Name, ".gate.weight") {
			bytes, scales, shape := roundFP8(v, height, width, rows, cols)
			add(qh, &q, spec.Name, "F8_E4M3", spec.Shape, bytes)
			add(qh, &q, spec.Name+"_scale_inv", "F32", shape, floats(scales))
		} else {
			add(qh, &q, spec.Name, "F32", spec.Shape, floats(v))
		}
		add(ph, &p, spec.Name, "F32", spec.Shape, floats(v))
	}
	var config map[string]any
	text, err := os.ReadFile(filepath.Join(c.Dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return err
	}
	for _, out := range []struct {
		dir  string
		file []byte
	}{{plain, File(ph, p)}, {quantized, File(qh, q)}} {
		if out.dir == quantized {
			config["quantization_config"] = map[string]any{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
				"weight_block_size": []int{rows, cols}}
		}
		if text, err = json.Marshal(config); err != nil {
			return err
		}
		if err := os.MkdirAll(out.dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out.dir, "config.json"), text, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out.dir, "model.safetensors"), out.file, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// roundFP8 rounds v to FP8, also in place. Each block's largest element becomes 448, the largest
// number of the format.
func roundFP8(v []float32, height, width, rows, cols int) (bytes []byte, scales []float32, shape []int) {
	shape = []int{(height + rows - 1) / rows, (width + cols - 1) / cols}
	bytes, scales = make([]byte, len(v)), make([]float32, shape[0]*shape[1])
	for i, x := range v {
		s := &scales[i/width/rows*shape[1]+i%width/cols]
		*s = max(*s, float32(math.Abs(float64(x)))/448)
	}
	for i, x := range v {
		s := scales[i/width/rows*shape[1]+i%width/cols]
		if s == 0 {
			continue
		}
		b := nearestFP8(float64(x / s))
		bytes[i], v[i] = b, float32(fp8Values[b])*s
	}
	return bytes, scales, shape
}

// fp8Values is float8_e4m3fn by its definition. The first 127 ascend.
var fp8Values = func() (v [256]float64) {
	for b := range v {
		sign, exp, man := 1-2*float64(b>>7), b>>3&15, float64(b&7)
		if v[b] = sign * (1 + man/8) * math.Pow(2, float64(exp-7)); exp == 0 {
			v[b] = sign * man / 8 * math.Pow(2, -6)
		}
	}
	return v
}()

func nearestFP8(x float64) byte {
	at := sort.SearchFloat64s(fp8Values[:127], math.Abs(x))
	if at == 127 || at > 0 && math.Abs(x)-fp8Values[at-1] < fp8Values[at]-math.Abs(x) {
		at--
	}
	if x < 0 {
		at |= 0x80
	}
	return byte(at)
}

func floats(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}
