package checkpoint_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestEncoderFolders: a folder with the tensors of each family opens, under the names of package model too, and one
// with a tensor of no family does not.
func TestEncoderFolders(t *testing.T) {
	for _, name := range []string{"BertModel", "XLMRobertaModel", "RobertaModel", "NomicBertModel", "ModernBertModel"} {
		text, err := tinyconfig.Of(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := model.ParseConfig("", text, nil)
		if err != nil {
			t.Fatal(err)
		}
		for extra, ok := range map[string]bool{"": true, "classifier.weight": true,
			"encoder.layer.0.attention.other.weight": false, "model.layers.0.attn.other.weight": false} {
			dir := t.TempDir()
			list := c.Tensors()
			if extra != "" {
				list = append(list, model.Spec{Name: extra, Shape: []int{1, c.Hidden}})
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := (modeltest.Shape{DType: tensor.BF16}).WriteFile(filepath.Join(dir, "model.safetensors"), list, 1); err != nil {
				t.Fatal(err)
			}
			ck, err := checkpoint.Open(dir)
			if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), extra) {
				t.Errorf("%s with %q: %v", name, extra, err)
			}
			if err == nil {
				ck.Close()
			}
		}
	}
}
