package quantform

import (
	"encoding/json"
	"slices"
	"strings"
)

// Forms of torchao, as transformers 5 stores them: the parts of a weight are tensors of their own, named
// module._weight_part. Float8Tensor is FP8 with a scale for the matrix or each row. Int8Tensor and
// IntxUnpackedToInt8Tensor have a byte for each element, w = (q - z) * scale, with a scale for each row
// or group of columns.
var torchaoFP8Form = &Form{
	Name: "torchao_fp8", Methods: []string{torchao}, Codes: torchaoCodes, Types: []string{"F8_E4M3"}, Parts: torchaoParts,
	Becomes: "bf16, each element rounded to 8 bits of precision",
	build: func(s *Settings, m *module) (*Matrix, error) {
		if err := m.unscaled(); err != nil {
			return nil, err
		}
		return buildFP8(s, m)
	},
}

var torchaoIntForm = &Form{
	Name: "torchao_int8", Methods: []string{torchao}, Codes: torchaoCodes, Types: []string{"I8"}, Parts: torchaoParts,
	Becomes: "int4 up to 4 bits, else q8_0; exact if scales are exact in float16",
	build: func(_ *Settings, m *module) (*Matrix, error) {
		if err := m.unscaled(); err != nil {
			return nil, err
		}
		return buildInt8(m, torchaoScale, "._weight_zero_point")
	},
}

const (
	torchao      = "torchao"
	torchaoCodes = "._weight_qdata"
	torchaoScale = "._weight_scale"
)

var torchaoParts = []string{torchaoScale, "._weight_zero_point", "._weight_act_pre_scale"}

// unscaled refuses weights whose inputs must be multiplied first.
func (m *module) unscaled() error {
	if p, ok := m.part("._weight_act_pre_scale"); ok {
		return &Error{Tensor: p.Name, Kind: ErrUnsupported,
			Detail: "multiplies the input of the product, which is not supported; use the original checkpoint and quantize on load"}
	}
	return nil
}

// torchaoConfigs are the configurations whose tensors are read.
var torchaoConfigs = []string{"Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig", "Int8WeightOnlyConfig",
	"Int8DynamicActivationInt8WeightConfig", "IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig"}

// readTorchAO reads quant_type: one configuration for all modules.
func readTorchAO(c *config, s *Settings) error {
	type object struct {
		Type string `json:"_type"`
		Data struct {
			Weight struct {
				Data string `json:"_data"`
			} `json:"weight_dtype"`
			Granularity struct {
				Type string `json:"_type"`
				Data struct {
					Group int `json:"group_size"`
				} `json:"_data"`
			} `json:"granularity"`
			Group struct {
				Type string `json:"_type"`
				Data struct {
					Group int `json:"group_size"`
				} `json:"_data"`
			} `json:"weight_granularity"`
		} `json:"_data"`
	}
	var types map[string]json.RawMessage
	var one object
	if json.Unmarshal(c.Type, &types) != nil || types["default"] == nil || len(types) != 1 || json.Unmarshal(types["default"], &one) != nil {
		return refuse("quant_type",
			"is not one torchao configuration for all modules, as transformers 5 writes it: save the model with transformers 5, or use the "+
				"original checkpoint and quantize on load")
	}
	if !slices.Contains(torchaoConfigs, one.Type) {
		return refuse("quant_type",
			"%q stores weights in the layout of one kernel, which is not supported; known: %s. Use the original checkpoint and quantize on load, "+
				"or publish it as compressed-tensors or GPTQ", clip(one.Type), strings.Join(torchaoConfigs, ", "))
	}
	group := one.Data.Granularity
	if group.Type == "" {
		group = one.Data.Group
	}
	switch narrow := slices.Contains([]string{"int1", "int2", "int3", "int4"}, one.Data.Weight.Data); {
	case strings.HasPrefix(one.Type, "Float8"):
		s.Held = "bf16"
	case narrow && (group.Type == "PerAxis" || group.Data.Group > 0 && group.Data.Group%Block == 0):
		s.Held = "int4"
	}
	return nil
}
