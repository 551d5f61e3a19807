package cluster

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

func TestModelCard(t *testing.T) {
	ck, err := checkpoint.Open("../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	s := ServeConfig{Model: ck.Dir}
	s.ensureDefaults(&ck.Config)
	c := modelCard(ck, &s)
	if c.Architecture != "llama" || c.Format != "safetensors" || c.Quantization != "BF16" || c.Digest != ck.Hash() ||
		c.Parameters == 0 || c.Bytes == 0 || c.Modified.IsZero() || c.Layers != ck.Config.Layers || c.KVHeads != ck.Config.KVHeads {
		t.Errorf("%+v", c)
	}
}
