package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/api"
)

// sampling has the sampling settings of a checkpoint; zero values are unset.
type sampling struct {
	Sample                 *bool
	Temperature            *float64
	TopP, MinP, Repetition float64
	TopK                   int
}

// samplingDefaults reads the default sampling parameters from generation_config.json of a folder,
// or from the metadata of a GGUF file.
func samplingDefaults(path string, c *api.Config) error {
	file, read := filepath.Join(path, "generation_config.json"), readGenerationConfig
	if _, err := os.Stat(filepath.Join(path, "config.json")); err != nil {
		if at, err := gguf.Find(path); err == nil { // a file, or the only one in a folder
			file, read = at, readGGUFSampling
		}
	}
	g, err := read(file)
	if os.IsNotExist(err) {
		return nil
	}
	if err == nil {
		p := sampler.Params{TopP: float32(g.TopP), MinP: float32(g.MinP), TopK: g.TopK, RepetitionPenalty: float32(g.Repetition), Logprobs: -1}
		if g.Temperature != nil {
			p.Temperature = float32(*g.Temperature)
		}
		err = p.Validate(0)
	}
	if err != nil {
		return fmt.Errorf("cluster: %s: %w", file, err)
	}
	c.DefaultTemperature, c.DefaultTopP, c.DefaultMinP, c.DefaultTopK, c.DefaultRepetitionPenalty = g.Temperature,
		g.TopP, g.MinP, g.TopK, g.Repetition
	if g.Sample != nil && !*g.Sample {
		zero := 0.0
		c.DefaultTemperature = &zero
	}
	return nil
}

func readGenerationConfig(file string) (g sampling, err error) {
	b, err := modelfile.Read(file, 16<<20)
	if err != nil {
		return g, err
	}
	var raw map[string]json.RawMessage
	if err := modelfile.Unmarshal(b, &raw); err != nil {
		return g, fmt.Errorf("it is not a JSON object: %s", modelfile.Words(err.Error()))
	}
	for _, field := range []struct {
		key, want string
		to        any
	}{
		{"do_sample", "true or false", &g.Sample}, {"temperature", "a number", &g.Temperature},
		{"top_p", "a number", &g.TopP}, {"min_p", "a number", &g.MinP},
		{"top_k", "an integer", &g.TopK}, {"repetition_penalty", "a number", &g.Repetition},
	} {
		if field.key == "temperature" && g.Sample != nil && !*g.Sample {
			continue // temperature is 0 in any case
		}
		if v := raw[field.key]; v != nil && json.Unmarshal(v, field.to) != nil {
			return g, fmt.Errorf("%s is %.80s: want %s", field.key, modelfile.Words(string(v)), field.want)
		}
	}
	return g, nil
}

// readGGUFSampling reads general.sampling.* of a GGUF file. Most files lack it and get the defaults
// of llama.cpp, which models in this format are tuned for. Sampling at temperature 1 from the whole
// vocabulary gives nonsense with small and with quantized models.
func readGGUFSampling(file string) (g sampling, err error) {
	f, err := gguf.Open(file)
	if err != nil {
		return g, err
	}
	defer f.Close()
	temperature := 0.8
	g = sampling{Temperature: &temperature, TopK: 40, TopP: 0.95, MinP: 0.05}
	numbers := map[string]*float64{"temp": &temperature, "top_p": &g.TopP, "min_p": &g.MinP, "penalty_repeat": &g.Repetition}
	for name, to := range numbers {
		if err := ggufNumber(f, name, to); err != nil {
			return g, err
		}
	}
	k := float64(g.TopK)
	err = ggufNumber(f, "top_k", &k)
	g.TopK = int(max(-1, min(k, 1<<31-1)))
	return g, err
}

// ggufNumber reads a number of general.sampling, if the file has it.
func ggufNumber(f *gguf.File, name string, to *float64) error {
	key := "general.sampling." + name
	v, ok := f.Value(key)
	if !ok {
		return nil
	}
	x, ok := v.Number()
	if !ok {
		return fmt.Errorf("%s is %v: want a number", key, v)
	}
	*to = x
	return nil
}
