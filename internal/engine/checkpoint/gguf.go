package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/ggufconfig"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// isGGUF returns the GGUF file that the path means, if any: a .gguf file, or a folder without
// config.json that holds exactly one.
func isGGUF(path string) (file string, ok bool, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", false, nil //nolint:nilerr // for the caller to report
	}
	if st.IsDir() {
		if _, err := os.Stat(filepath.Join(path, model.ConfigFile)); err == nil {
			return "", false, nil
		}
	}
	file, err = gguf.Find(path)
	if errors.Is(err, gguf.ErrAmbiguous) || errors.Is(err, gguf.ErrPart) {
		return "", false, &model.Error{File: path, Kind: model.ErrNoCheckpoint, Detail: ggufconfig.Detail(err)}
	}
	return file, err == nil, nil
}

// openGGUF reads config and tensors from a file, or from its parts. Tensors get their Hugging Face
// names.
func (c *Checkpoint) openGGUF(path string) error {
	parts, err := gguf.OpenParts(path)
	if err != nil {
		return ggufconfig.WrapError(path, err)
	}
	c.gguf = true
	var all []gguf.Tensor
	var homes []*weightFile
	for _, f := range parts {
		homes = append(homes, c.addFile(f.Mapping(), f.Close))
		all = append(all, f.Tensors...)
	}
	if c.Config, err = ggufconfig.Read(parts[0], all); err != nil {
		return err
	}
	arch, err := parts[0].Text("general.architecture", "")
	if err != nil {
		return ggufconfig.WrapError(path, err)
	}
	family := ggufconfig.FamilyOf(arch)
	for i, f := range parts {
		for _, t := range f.Tensors {
			p := place{path: f.Path, stored: t.Type.String(), weight: true,
				Tensor: Tensor{Name: family.HubName(t.Name), DType: heldAs(t.Type), Shape: t.Shape, Data: t.Data, home: homes[i]}}
			if t.Type.Block() > 1 {
				p.blocks = t.Type
			}
			if family.Paired && (strings.Contains(t.Name, ".attn_q.") || strings.Contains(t.Name, ".attn_k.")) {
				p.order = model.Order{Head: c.Config.HeadDim, Rotated: c.Config.HeadDim, Neighbours: true}
			}
			taken, err := c.takeExperts(t, p)
			if err == nil && !taken {
				err = c.add(p)
			}
			if err != nil {
				return err
			}
		}
	}
	c.flattenNorms()
	if err := c.takeRopeFactors(path); err != nil {
		return err
	}
	if c.Config.ByContext() { // the config has them
		delete(c.at, ggufconfig.LongRope["short_factor"])
		delete(c.at, ggufconfig.LongRope["long_factor"])
	}
	if join := joins[arch]; join != nil {
		if err := join(c); err != nil {
			return err
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	c.readSinks()
	if c.Config.Quantized == nil {
		c.Config.DType = c.commonType()
	}
	return c.identify(c.Config.Tensors())
}

// joins convert the tensors of a GGUF file to the form of a Hugging Face folder, or drop some. Keys are
// architectures.
var joins = map[string]func(*Checkpoint) error{
	"deepseek2": joinKVUp, "glm4moe": (*Checkpoint).dropAhead,
	"bert": takeEndNorms, "nomic-bert": takeEndNorms,
	"qwen35": takeDelta, "qwen35moe": takeDelta, "qwen3next": takeDelta,
	"lfm2": takeJoint, "lfm2moe": takeJoint, "granitehybrid": takeJoint, "falcon-h1": takeJoint,
	"nemotron_h": takeJoint, "nemotron_h_moe": takeJoint,
}

// takeRopeFactors reads rope_freqs.weight, which divides the rotary frequencies. The converter
// writes it for Llama 3's rope_scaling.
func (c *Checkpoint) takeRopeFactors(path string) error {
	const name = "rope_freqs.weight"
	p, ok := c.at[name]
	if !ok {
		return nil
	}
	delete(c.at, name)
	fail := func(kind error, format string, args ...any) error {
		return &model.Error{File: path, Tensor: name, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
	n := c.Config.RopeDim() / 2
	switch {
	case p.DType != tensor.F32 || len(p.Shape) != 1 || p.Shape[0] != n:
		return fail(model.ErrMismatch, "is %s of shape %v; %d frequencies want F32 [%d]", p.stored, p.Shape, n, n)
	case c.Config.Rope.Type != "":
		return fail(model.ErrUnsupported, "conflicts with rope.scaling.type %q", c.Config.Rope.Type)
	}
	factors := make([]float32, n)
	p.Row(factors, 0, 0, n)
	if rotated := slices.Index(factors, 1e30); rotated >= 0 { // as the converter writes Gemma 4's
		for i, v := range factors {
			if i < rotated && v != 1 || i >= rotated && v != 1e30 {
				return fail(model.ErrUnsupported, "element %d is %g; with 1e30 for pairs that do not rotate, the first ones have 1", i, v)
			}
		}
		c.Config.Rope.Type, c.Config.Rope.Factor, c.Config.Rope.Part = "proportional", 1, float64(rotated)/float64(n)
		return nil
	}
	c.Config.Rope.Type, c.Config.Rope.Divisors = "divided", make([]float64, n)
	for i, v := range factors {
		if !(v > 1e-6 && v < 1e6) {
			return fail(model.ErrOutOfRange, "element %d is %g", i, v)
		}
		c.Config.Rope.Divisors[i] = float64(v)
	}
	return nil
}

// commonType returns the type in which most bytes of the matrices are held.
func (c *Checkpoint) commonType() tensor.DType {
	var bytes [math.MaxUint8]int64
	best := c.must(c.Config.Tensors()[0].Name).DType
	for _, s := range c.Config.Tensors() {
		if t := c.must(s.Name); len(s.Shape) > 1 && s.Name != model.Embedding {
			if bytes[t.DType] += int64(len(t.Data)); bytes[t.DType] > bytes[best] {
				best = t.DType
			}
		}
	}
	return best
}

// heldAs returns the type in which the tensors of a GGUF file are held. All block formats are held as Q8_0.
// That is exact for Q8_0, and within 1/254 of a block's largest element for the others (half a step
// of Q4_0 is 1/16). So a file of several types, as most are, needs only one type in memory.
func heldAs(t gguf.Type) tensor.DType {
	switch t {
	case gguf.F32:
		return tensor.F32
	case gguf.F16:
		return tensor.F16
	case gguf.BF16:
		return tensor.BF16
	}
	return tensor.Q8_0
}
