package checkpoint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/families"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var sideBySide = []string{"falcon_h1", "falcon_h1_norm", "nemotron_h", "nemotron_h_moe"}

// TestSideBySideFolders: the folders that transformers wrote open with both forms of config.json, with no tensor left
// over. One with a tensor of another model does not.
func TestSideBySideFolders(t *testing.T) {
	for _, name := range sideBySide {
		dir := filepath.Join("../model/testdata", name)
		a, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if extra := a.Extra(); len(extra) > 0 {
			t.Errorf("%s: extra %v", name, extra)
		}
		text, err := os.ReadFile(filepath.Join(dir, "config.v5.json"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := model.ParseConfig("d", text, nil)
		if b.EOS, b.BOS = a.Config.EOS, a.Config.BOS; err != nil || fmt.Sprintf("%+v", b) != fmt.Sprintf("%+v", a.Config) {
			t.Errorf("%s: config.v5.json gives\n%+v, %v; want\n%+v", name, b, err, a.Config)
		}
		for extra, ok := range map[string]bool{"mtp.layers.0.norm.weight": true,
			"model.layers.0.mixer.other.weight": false, "backbone.layers.0.other": false} {
			if strings.HasPrefix(name, "falcon") && strings.HasPrefix(extra, "backbone.") {
				continue
			}
			other := t.TempDir()
			if err := os.WriteFile(filepath.Join(other, "config.json"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			list := append(a.Config.Tensors(), model.Spec{Name: extra, Shape: []int{1, 4}})
			if err := (modeltest.Shape{DType: tensor.BF16}).WriteFile(filepath.Join(other, "model.safetensors"), list, 1); err != nil {
				t.Fatal(err)
			}
			ck, err := checkpoint.Open(other)
			if (err == nil) != ok {
				t.Errorf("%s with %s: %v", name, extra, err)
			}
			if err == nil {
				ck.Close()
			}
		}
	}
}

// TestSideBySideGGUF: a GGUF file of the same weights is the same model. The converter multiplies Falcon-H1's weights;
// TestGoldensGGUF of actors/socket compares its results.
func TestSideBySideGGUF(t *testing.T) {
	for _, name := range sideBySide {
		hub, err := checkpoint.Open(filepath.Join("../model/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		defer hub.Close()
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := os.WriteFile(path, modeltest.Convert(hub, func(string) gguf.Type { return gguf.F32 }).Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := checkpoint.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		want := hub.Config
		want.DType, want.Delta.Negated, want.NormEps = tensor.F32, true, got.Config.NormEps
		if want.Architecture == families.FalconH1 {
			want.Multipliers, want.Delta.Factors, want.QueryScale = model.Multipliers{}, recurrent.Factors{}, got.Config.QueryScale
		}
		if want.Rope = got.Config.Rope; fmt.Sprintf("%+v", got.Config) != fmt.Sprintf("%+v", want) || len(got.Extra()) > 0 {
			t.Errorf("%s: config\n%+v\nwant\n%+v, extra %v", name, got.Config, want, got.Extra())
		}
		for _, s := range want.Tensors() {
			a, err := hub.Tensor(s.Name)
			b, err2 := got.Tensor(s.Name)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			if want.Architecture == families.FalconH1 || strings.HasSuffix(s.Name, "A_log") {
				continue
			}
			x, y := make([]float32, a.Cols()), make([]float32, a.Cols())
			for r := range a.Rows() {
				a.Row(x, r, 0, a.Cols())
				b.Row(y, r, 0, a.Cols())
				if !slices.Equal(x, y) {
					t.Errorf("%s: %s, row %d differs", name, s.Name, r)
					break
				}
			}
		}
	}
}
