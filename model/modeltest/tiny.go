package modeltest

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/tensor"
)

// Tinies lists the architectures that WriteTiny knows.
func Tinies() []string { return model.Architectures() }

// GGUFs lists those that a GGUF file can hold.
func GGUFs() []string {
	return slices.DeleteFunc(Tinies(), func(name string) bool { return name == "LlamaSwiftKVForCausalLM" })
}

// WriteTiny writes a checkpoint of a few kilobytes, in bf16.
func WriteTiny(dir, architecture string) error {
	text, err := model.TinyConfig(architecture)
	if err != nil {
		return err
	}
	config, err := model.ParseConfig(dir, text, nil)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		return err
	}
	return Shape{DType: tensor.BF16}.writeFile(filepath.Join(dir, "model.safetensors"), config.Tensors(), 1)
}
