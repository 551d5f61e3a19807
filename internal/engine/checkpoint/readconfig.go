package checkpoint

import (
	"errors"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/ggufconfig"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// ReadConfig reads the config of a folder or a .gguf file without its weights. stored is the type
// of most weights, in the files' spelling: bf16, Q4_K.
func ReadConfig(path string) (c model.Config, stored string, err error) {
	file, ok, err := isGGUF(path)
	if err != nil {
		return c, "", err
	}
	if ok {
		if mmap.Guard(func() { c, stored, err = readGGUF(file) }) != nil {
			err = &model.Error{File: file, Kind: model.ErrChanged, Detail: "was truncated while it was read"}
		}
		return c, stored, err
	}
	text, err := readSmall(filepath.Join(path, model.ConfigFile), model.MaxConfigBytes)
	if err != nil {
		return c, "", err
	}
	if text, err = withQuantFile(path, text); err != nil {
		return c, "", err
	}
	generation, err := readSmall(filepath.Join(path, model.GenerationFile), model.MaxConfigBytes)
	if err != nil && !errors.Is(err, model.ErrMissing) {
		return c, "", err
	}
	if c, err = model.ParseConfig(path, text, generation); err != nil {
		return c, "", err
	}
	var parsed struct {
		Quantization struct {
			Method string `json:"quant_method"`
		} `json:"quantization_config"`
	}
	if stored = c.DType.String(); modelfile.Unmarshal(text, &parsed) == nil && parsed.Quantization.Method != "" {
		stored = parsed.Quantization.Method
	}
	return c, stored, nil
}

func readGGUF(path string) (c model.Config, stored string, err error) {
	parts, err := gguf.OpenParts(path)
	if err != nil {
		return c, "", ggufconfig.WrapError(path, err)
	}
	var all []gguf.Tensor
	bytes := map[string]int{}
	for _, f := range parts {
		defer f.Close()
		all = append(all, f.Tensors...)
		for _, t := range f.Tensors {
			if name := t.Type.String(); len(t.Shape) > 1 {
				if bytes[name] += len(t.Data); bytes[name] > bytes[stored] {
					stored = name
				}
			}
		}
	}
	c, err = ggufconfig.Read(parts[0], all)
	return c, stored, err
}
