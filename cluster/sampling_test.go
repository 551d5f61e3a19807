package cluster

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/api"
	"github.com/shoal-llm/shoal/sampler"
)

// TestSamplingIsCheckedBeforeItRuns: a program that embeds a cluster gets the error, not
// the sockets, which would end the epoch over it.
func TestSamplingIsCheckedBeforeItRuns(t *testing.T) {
	c := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32"}})
	p := sampler.Default()
	p.TopP = float32(math.NaN())
	var bad api.ErrInvalid
	if _, err := c.Submit(context.Background(), &api.Request{ID: "a", Prompt: []int32{1}, MaxTokens: 1, Sampling: p, PromptLogprobs: -1}); !errors.As(err, &bad) || bad.Param != "top_p" {
		t.Fatal(err)
	}
}

// TestSamplingDefaultsAreChecked: what generation_config.json says of sampling must be
// possible, or every request without its own would fail.
func TestSamplingDefaultsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}`: "",
		`{"temperature": -1}`:         "temperature",
		`{"temperature": 1e300}`:      "temperature",
		`{"top_p": 1.5}`:              "top_p",
		`{"min_p": -0.5}`:             "min_p",
		`{"top_k": -7}`:               "top_k",
		`{"repetition_penalty": -1}`:  "repetition_penalty",
		`{"repetition_penalty": "a"}`: "generation_config.json",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := samplingDefaults(dir, new(api.Config)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
