package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestSamplingIsCheckedBeforeItRuns: an embedding program gets an error for invalid sampling.
// Otherwise the sockets would reject it and the epoch would end.
func TestSamplingIsCheckedBeforeItRuns(t *testing.T) {
	c := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32"}})
	p := sampler.Default()
	p.TopP = float32(math.NaN())
	var bad apierr.ErrInvalid
	if _, err := c.Submit(context.Background(), &engine.Request{ID: "a", Prompt: []int32{1}, MaxTokens: 1,
		Sampling: p, PromptLogprobs: -1}); !errors.As(err, &bad) || bad.Param != "top_p" {
		t.Fatal(err)
	}
}

// TestSamplingDefaultsAreChecked: invalid sampling values in generation_config.json are an error at
// start, because they would fail every request without its own.
func TestSamplingDefaultsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}`: "",
		`{"temperature": -1}`:                      "temperature",
		`{"temperature": 1e300}`:                   "temperature",
		`{"top_p": 1.5}`:                           "top_p",
		`{"min_p": -0.5}`:                          "min_p",
		`{"top_k": -7}`:                            "top_k",
		`{"repetition_penalty": -1}`:               "repetition_penalty",
		`{"repetition_penalty": "a"}`:              "generation_config.json: repetition_penalty is \"a\": want a number",
		`{"temperature": NaN}`:                     "generation_config.json: temperature is NaN: want a number",
		`{"top_p": -Infinity}`:                     "generation_config.json: top_p is -Infinity: want a number",
		`{"top_k": Infinity}`:                      "generation_config.json: top_k is Infinity: want an integer",
		`{"do_sample": NaN}`:                       "generation_config.json: do_sample is NaN: want true or false",
		`{NaN: 1}`:                                 "generation_config.json: it is not a JSON object",
		`{"do_sample": false, "temperature": NaN}`: "",
		`{"typical_p": NaN, "temperature": null}`:  "",
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

// TestSamplingDefaultsOfGGUF: a file's own settings, else those of llama.cpp.
func TestSamplingDefaultsOfGGUF(t *testing.T) {
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for _, c := range []struct {
		set   map[string]any
		want  string
		fails string
	}{
		{nil, "0.8 0.95 0.05 40 0", ""},
		{map[string]any{"temp": float32(0.5), "top_k": uint32(20), "penalty_repeat": float32(1.5)}, "0.5 0.95 0.05 20 1.5", ""},
		{map[string]any{"temp": float32(0), "top_p": float32(1), "min_p": float32(0), "top_k": uint32(0)}, "0 1 0 0 0", ""},
		{map[string]any{"temp": float32(-1)}, "", "temperature"},
		{map[string]any{"top_p": "much"}, "", "general.sampling.top_p"},
	} {
		g := modeltest.Convert(ck, func(string) gguf.Type { return gguf.F32 })
		for name, v := range c.set {
			g.Set("general.sampling."+name, v)
		}
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := os.WriteFile(path, g.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		var got api.Config
		if err := samplingDefaults(filepath.Dir(path), new(api.Config)); (err == nil) != (c.fails == "") {
			t.Errorf("the folder of %v: %v", c.set, err)
		}
		err := samplingDefaults(path, &got)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v: %v", c.set, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(*got.DefaultTemperature, got.DefaultTopP, got.DefaultMinP, got.DefaultTopK, got.DefaultRepetitionPenalty)
		if text != c.want {
			t.Errorf("%v: %s, want %s", c.set, text, c.want)
		}
	}
}
