package checkpoint

import (
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// HeldAs is Config.HeldAs for a matrix of the files.
func (c *Checkpoint) HeldAs(name string, dt tensor.DType) tensor.DType {
	if s := c.Config.Quantized; s == nil || !s.IsNative(dt) || c.at[name].hasCodes() {
		return dt
	}
	return tensor.Q8_0
}

// Quantized reports whether the tensor is a matrix in a quantized form.
func (t Tensor) Quantized() bool { return t.form != nil || t.hasCodes() }

// hasCodes reports whether Codes may succeed.
func (t Tensor) hasCodes() bool {
	return t.form != nil && t.form.Codes != nil || dequant.HasCodes(t.blocks)
}

// Codes reads the 32 columns from lo on of row r in their stored form. It returns false if they are not
// integers with one scale.
func (t Tensor) Codes(c *tensor.Codes, r, lo int) (ok bool) {
	if !t.hasCodes() {
		return false
	}
	if mmap.Guard(func() {
		if t.form != nil {
			c.Zero, c.Scale, ok = t.form.Codes(&c.Q, r, lo)
			return
		}
		size := t.Cols() / t.blocks.Block() * t.blocks.BlockBytes()
		c.Zero, c.Scale, ok = 0, dequant.Codes(&c.Q, t.Data[t.order.Row(r)*size:][:size], t.blocks, lo), true
	}) != nil {
		return false
	}
	return ok
}

// takeForms replaces the tensors of every quantized matrix by the matrix.
func (c *Checkpoint) takeForms() error {
	s := c.Config.Quantized
	if s == nil {
		return nil
	}
	find := func(name string) (quantform.Part, bool) {
		p, ok := c.at[name]
		return p.part(), ok
	}
	var bad model.Problems
	for _, name := range c.names() {
		p := c.at[name]
		if c.nested && isTower(name) {
			continue
		}
		if quantform.Unused(name) {
			delete(c.at, name)
			continue
		}
		form, base := s.Match(p.part(), find)
		if form == nil {
			continue
		}
		m, err := s.Assemble(form, base, p.part(), find)
		if e, ok := errors.AsType[*quantform.Error](err); ok {
			bad.List = append(bad.List, &model.Error{File: p.path, Tensor: e.Tensor, Kind: model.KindOf(e), Detail: e.Detail})
			continue
		}
		made := c.formed(p, base+".weight", m)
		for _, part := range m.Parts {
			delete(c.at, part.Name)
		}
		if err := c.add(made); err != nil {
			return err
		}
	}
	return bad.In(c.Dir)
}

func (p place) part() quantform.Part {
	return quantform.Part{Name: p.Name, Stored: p.stored, Shape: p.Shape, Data: p.Data}
}

// formed returns the place of a matrix in a quantized form. of is one of its tensors.
func (c *Checkpoint) formed(of place, name string, m *quantform.Matrix) place {
	p := place{path: of.path, offset: of.offset, stored: of.stored, weight: true}
	p.Name, p.DType, p.Shape, p.home, p.fill, p.form = name, c.Config.DType, []int{m.Rows, m.Cols}, of.home, m.Row, m
	for _, part := range m.Parts {
		home := of.home
		if own, ok := c.at[part.Name]; ok {
			home = own.home
		}
		p.parts = append(p.parts, Tensor{Name: part.Name, Shape: part.Shape, Data: part.Data, home: home, raw: true})
	}
	return p
}

// hubQuantFile is ModelOpt's file that describes the form if config.json does not.
const hubQuantFile = "hf_quant_config.json"

// withQuantFile adds the form of ModelOpt's file to the text of config.json.
func withQuantFile(dir string, config []byte) ([]byte, error) {
	text, err := readSmall(filepath.Join(dir, hubQuantFile), model.MaxConfigBytes)
	if errors.Is(err, model.ErrMissing) {
		return config, nil
	} else if err != nil {
		return nil, err
	}
	var parsed struct {
		Quantization map[string]json.RawMessage `json:"quantization"`
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(config, &all) != nil || all == nil || all["quantization_config"] != nil {
		return config, nil //nolint:nilerr // ParseConfig reports invalid JSON
	}
	if err := json.Unmarshal(text, &parsed); err != nil || parsed.Quantization == nil {
		return nil, &model.Error{File: filepath.Join(dir, hubQuantFile), Kind: model.ErrFormat, Detail: "has no object \"quantization\""}
	}
	parsed.Quantization["quant_method"] = json.RawMessage(`"modelopt"`)
	if all["quantization_config"], err = json.Marshal(parsed.Quantization); err != nil {
		return nil, &model.Error{File: filepath.Join(dir, hubQuantFile), Kind: model.ErrFormat, Detail: err.Error()}
	}
	return json.Marshal(all)
}
