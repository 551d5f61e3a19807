package quantform

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Settings are a config's settings of a quantized form.
type Settings struct {
	Method string // quant_method

	FP8Block [2]int `json:",omitzero"` // rows and columns with one FP8 scale; 0: the shape of the scales decides
	Bits     int    `json:",omitempty"`
	Plain    bool   `json:",omitempty"` // GPTQ: zero points are stored without an offset (gptq_v2)
	Experts  bool   `json:",omitempty"` // only stacks of experts, as gpt-oss stores them
	Held     string `json:",omitempty"` // the type in memory that keeps the values, or most of their precision
}

// IsNative reports whether weights of type dt use the codes of the files unchanged. Others become q8_0.
func (s *Settings) IsNative(dt fmt.Stringer) bool {
	return s.Held == dt.String() && (s.Held == "int4" || s.Held == "mxfp4")
}

// GGUF returns the settings of a GGUF file whose experts are blocks of MXFP4, as those of gpt-oss.
func GGUF() *Settings { return &Settings{Method: "gguf", Experts: true, Held: "mxfp4"} }

// maxBlock bounds the sizes of FP8 blocks.
const maxBlock = 1 << 16

// config is quantization_config of config.json, with the fields that matter here.
type config struct {
	Method     string          `json:"quant_method"`
	Format     string          `json:"fmt"`
	Scheme     string          `json:"activation_scheme"`
	Block      json.RawMessage `json:"weight_block_size"`
	Bits       json.RawMessage `json:"bits"`
	Group      int             `json:"group_size"`
	ActOrder   bool            `json:"desc_act"`
	Checkpoint string          `json:"checkpoint_format"`
	Dynamic    json.RawMessage `json:"dynamic"`        // gptq: settings of modules, see others
	Extra      json.RawMessage `json:"extra_config"`   // auto-round: the same
	Packing    string          `json:"packing_format"` // auto-round
	Version    string          `json:"version"`        // awq
	Layout     string          `json:"format"`         // compressed-tensors
	Transform  json.RawMessage `json:"transform_config"`
	Sparsity   json.RawMessage `json:"sparsity_config"`
	Groups     map[string]struct {
		Format  string `json:"format"`
		Weights *struct {
			Block json.RawMessage `json:"block_structure"`
			Bits  int             `json:"num_bits"`
			Group int             `json:"group_size"`
			Order json.RawMessage `json:"actorder"`
		} `json:"weights"`
	} `json:"config_groups"`
	Algorithm string `json:"quant_algo"` // modelopt
	Load4     bool   `json:"load_in_4bit"`
	Load8     bool   `json:"load_in_8bit"`
	Type4     string `json:"bnb_4bit_quant_type"`

	Type json.RawMessage `json:"quant_type"` // torchao
}

func refuse(field, format string, args ...any) error {
	return &Error{Field: field, Kind: ErrUnsupported, Detail: fmt.Sprintf(format, args...)}
}

// known returns a field with the values that are implemented; empty counts as the first.
func known(field, value string, values ...string) error {
	if value == "" || slices.Contains(values, strings.ToLower(value)) {
		return nil
	}
	return refuse(field, "%q is not supported; known: %s", clip(value), strings.Join(values, ", "))
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// Methods returns the methods of the table.
func Methods() (out []string) {
	for _, f := range forms {
		for _, m := range f.Methods {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Read reads quantization_config. A setting that changes the weights and is not implemented is
// refused.
func Read(text []byte) (*Settings, error) {
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, &Error{Kind: ErrFormat, Detail: "does not have the fields of a quantization_config: " + err.Error()}
	}
	s := &Settings{Method: c.Method, Held: "q8_0"}
	if c.Method == "" {
		s.Method = "an unnamed method"
	}
	if !slices.Contains(Methods(), s.Method) {
		return nil, refuse("quant_method",
			"weights quantized by %q are not supported; known: %s. Use the original checkpoint and quantize on load",
			clip(s.Method), strings.Join(Methods(), ", "))
	}
	read := map[string]func(*config, *Settings) error{
		"fp8": readFP8, "compressed-tensors": readCompressed, "gptq": readGPTQ, "auto-round": readAutoRound, torchao: readTorchAO,
		"awq":        func(c *config, s *Settings) error { s.hold4(c); return known("version", c.Version, "gemm") },
		"fbgemm_fp8": func(_ *config, s *Settings) error { s.Held = "bf16"; return nil },
		"modelopt": func(c *config, s *Settings) error {
			if strings.HasPrefix(strings.ToLower(c.Algorithm), "fp8") {
				s.Held = "bf16"
			}
			return known("quant_algo", c.Algorithm, "fp8", "nvfp4", "mixed_precision", "fp8_per_channel_per_token", "fp8_pb_wo")
		},
		"bitsandbytes": func(c *config, _ *Settings) error { return known("bnb_4bit_quant_type", c.Type4, "nf4", "fp4") },
		"mxfp4":        func(_ *config, s *Settings) error { s.Experts, s.Held = true, "mxfp4"; return nil },
	}[s.Method]
	if read == nil {
		return s, nil
	}
	return s, read(&c, s)
}

// given reports whether a field has a value that is not null, {} or [].
func given(v json.RawMessage) bool {
	text := strings.TrimSpace(string(v))
	return text != "" && text != "null" && text != "{}" && text != "[]"
}

// readBlock reads two sizes; nothing if they are missing.
func readBlock(field string, v json.RawMessage) (block [2]int, err error) {
	if !given(v) {
		return block, nil
	}
	var list []int64
	if err := json.Unmarshal(v, &list); err != nil {
		return block, &Error{Field: field, Kind: ErrFormat, Detail: clip(string(v)) + " is not a list of two sizes"}
	}
	if len(list) != 2 || list[0] < 1 || list[1] < 1 || list[0] > maxBlock || list[1] > maxBlock {
		return block, &Error{Field: field, Kind: ErrOutOfRange,
			Detail: fmt.Sprintf("%s; want two sizes in 1..%d", clip(fmt.Sprint(list)), maxBlock)}
	}
	return [2]int{int(list[0]), int(list[1])}, nil
}

func readFP8(c *config, s *Settings) (err error) {
	if err = known("fmt", c.Format, "e4m3", "float8_e4m3fn"); err != nil {
		return err
	}
	if err = known("activation_scheme", c.Scheme, "dynamic", "static"); err != nil {
		return err
	}
	s.Held = "bf16"
	s.FP8Block, err = readBlock("weight_block_size", c.Block)
	return err
}

func readCompressed(c *config, s *Settings) (err error) {
	formats := []string{"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
		"mxfp4-pack-quantized", "mixed-precision", "mixed", "dense"}
	if err := known("format", c.Layout, formats...); err != nil {
		return err
	}
	if given(c.Transform) {
		return refuse("transform_config", "weights were rotated, and activations must be as well: not supported")
	}
	var sparse struct{ Format string }
	if given(c.Sparsity) && (json.Unmarshal(c.Sparsity, &sparse) != nil || sparse.Format != "" && sparse.Format != "dense") {
		return refuse("sparsity_config", "sparse weights are not supported")
	}
	switch c.Layout {
	case "float-quantized":
		s.Held = "bf16"
	case "mxfp4-pack-quantized":
		s.Held = "mxfp4"
	case "pack-quantized":
		s.Held = "int4"
	}
	for name, g := range c.Groups {
		if err := known("config_groups."+name+".format", g.Format, formats...); err != nil {
			return err
		}
		if w := g.Weights; w != nil && s.Held == "int4" && (w.Bits > 4 || w.Group > 0 && w.Group%Block != 0 || scattered(w.Order)) {
			s.Held = "q8_0"
		}
		if g.Weights == nil || !given(g.Weights.Block) {
			continue
		}
		block, err := readBlock("config_groups."+name+".weights.block_structure", g.Weights.Block)
		if err != nil {
			return err
		}
		if s.FP8Block != [2]int{} && s.FP8Block != block {
			return refuse("config_groups", "blocks of %v and of %v: only one size is supported", s.FP8Block, block)
		}
		s.FP8Block = block
	}
	return nil
}

func readBits(c *config, s *Settings) error {
	var bits int64
	if given(c.Bits) {
		if err := json.Unmarshal(c.Bits, &bits); err != nil {
			return &Error{Field: "bits", Kind: ErrFormat, Detail: clip(string(c.Bits)) + " is not a whole number"}
		}
	}
	if !slices.Contains([]int64{2, 3, 4, 8}, bits) {
		return &Error{Field: "bits", Kind: ErrOutOfRange, Detail: fmt.Sprintf("%d; want 2, 3, 4 or 8", bits)}
	}
	if s.Bits = int(bits); bits <= 4 {
		s.hold4(c)
	}
	return nil
}

// hold4 keeps codes of 4 bits if each block of 32 columns has one scale.
func (s *Settings) hold4(c *config) {
	if (c.Group%Block == 0 && !c.ActOrder || c.Group < 0) && !others(c.Dynamic) && !others(c.Extra) {
		s.Held = "int4"
	}
}

// others reports whether some modules have settings of their own whose codes int4 cannot keep. Keys are
// patterns of names. "-:" in front means that the modules are not quantized.
func others(v json.RawMessage) bool {
	var modules map[string]json.RawMessage
	if json.Unmarshal(v, &modules) != nil {
		return false
	}
	for name, text := range modules {
		var m struct {
			Bits     float64 `json:"bits"`
			Group    int     `json:"group_size"`
			ActOrder bool    `json:"desc_act"`
		}
		if strings.HasPrefix(name, "-:") {
			continue
		}
		if json.Unmarshal(text, &m) != nil || m.Bits > 4 && m.Bits <= 8 || m.Group > 0 && m.Group%Block != 0 || m.ActOrder {
			return true
		}
	}
	return false
}

// scattered reports whether the order of quantization puts neighbouring columns in different groups.
// compressed-tensors has several names for it.
func scattered(order json.RawMessage) bool {
	return slices.Contains([]string{`"group"`, `"dynamic"`, "true"}, strings.ToLower(string(order)))
}

func readGPTQ(c *config, s *Settings) error {
	if err := known("checkpoint_format", c.Checkpoint, "gptq", "gptq_v2"); err != nil {
		return err
	}
	s.Plain = c.Checkpoint == "gptq_v2"
	return readBits(c, s)
}

func readAutoRound(c *config, s *Settings) error {
	if err := known("packing_format", c.Packing, "auto_round:auto_gptq", "auto_round:gptq", "auto_gptq",
		"auto_round:auto_awq", "auto_round:awq"); err != nil {
		return err
	}
	if s.Method = "gptq"; strings.HasSuffix(strings.ToLower(c.Packing), "awq") {
		s.Method = "awq"
		s.hold4(c)
		return nil
	}
	return readBits(c, s)
}
