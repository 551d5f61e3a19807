package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

const (
	configFile  = "adapter_config.json"
	weightsFile = "adapter_model.safetensors"

	maxConfig  = 1 << 20
	maxRank    = 1 << 12 // of a file; shard.MaxAdapterRank bounds an adapter that requests choose
	maxPattern = 256     // bytes of a pattern
	maxEntries = 1024    // patterns of one kind
)

// config is the part of adapter_config.json that determines the sum.
type config struct {
	base          string
	rank          int
	alpha         float64
	squareRoot    bool // the scale is alpha/sqrt(r)
	ranks, alphas []pattern
}

// pattern gives the modules whose names end with it another value.
type pattern struct {
	match *regexp.Regexp
	value float64
}

// readConfig reads the config of an adapter folder. It returns its bytes too, which identify it.
func readConfig(dir string) (*config, []byte, error) {
	path := filepath.Join(dir, configFile)
	text, err := modelfile.Read(path, maxConfig)
	if err != nil {
		return nil, nil, unreadable(path, err)
	}
	c, err := parseConfig(path, text)
	return c, text, err
}

// unreadable converts an error of a file.
func unreadable(path string, err error) error {
	kind := model.ErrMissing
	if errors.Is(err, modelfile.ErrNotRegular) || errors.Is(err, modelfile.ErrTooLarge) {
		kind = model.ErrFormat
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return &model.Error{File: path, Kind: kind, Detail: err.Error()}
}

const mergeFirst = "is not supported: merge the adapter into its base with PEFT (merge_and_unload) and serve the result"

// parseConfig parses adapter_config.json and refuses settings that would change the sum.
func parseConfig(path string, text []byte) (*config, error) {
	fail := func(field string, kind error, format string, args ...any) error {
		return &model.Error{File: path, Field: field, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
	var raw map[string]json.RawMessage
	if err := modelfile.Unmarshal(text, &raw); err != nil {
		return nil, fail("", model.ErrFormat, "is not a JSON object: %v", err)
	}
	value := func(key string, to any) error {
		text, ok := raw[key]
		if !ok || string(text) == "null" {
			return nil
		}
		if err := json.Unmarshal(text, to); err != nil {
			return fail(key, model.ErrFormat, "has the wrong type: %v", err)
		}
		return nil
	}
	c := &config{}
	kind, bias := "LORA", "none"
	err := errors.Join(value("peft_type", &kind), value("bias", &bias), value("base_model_name_or_path", &c.base),
		value("r", &c.rank), value("lora_alpha", &c.alpha), value("use_rslora", &c.squareRoot))
	if err != nil {
		return nil, err
	}
	if kind != "LORA" {
		return nil, fail("peft_type", model.ErrUnsupported, "is %.40q, only LORA is supported", kind)
	}
	if bias != "none" {
		return nil, fail("bias", model.ErrUnsupported, "is %.40q, which changes biases; it "+mergeFirst, bias)
	}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if why := refused(key, strings.TrimSpace(string(raw[key]))); why != "" {
			return nil, fail(key, model.ErrUnsupported, "%s", why)
		}
	}
	if c.rank < 1 || c.rank > maxRank {
		return nil, fail("r", model.ErrOutOfRange, "is %d, want 1 to %d", c.rank, maxRank)
	}
	if !validAlpha(c.alpha) {
		return nil, fail("lora_alpha", model.ErrOutOfRange, "is %g, want more than 0 and at most 1e6", c.alpha)
	}
	for key, to := range map[string]*[]pattern{"rank_pattern": &c.ranks, "alpha_pattern": &c.alphas} {
		if *to, err = readPatterns(raw[key]); err != nil {
			return nil, fail(key, model.ErrFormat, "%v", err)
		}
	}
	for _, p := range c.ranks {
		if p.value != math.Trunc(p.value) || p.value < 1 || p.value > maxRank {
			return nil, fail("rank_pattern", model.ErrOutOfRange, "has rank %g, want 1 to %d", p.value, maxRank)
		}
	}
	for _, p := range c.alphas {
		if !validAlpha(p.value) {
			return nil, fail("alpha_pattern", model.ErrOutOfRange, "has alpha %g, want more than 0 and at most 1e6", p.value)
		}
	}
	return c, nil
}

func validAlpha(a float64) bool { return a > 0 && a <= 1e6 }

// refused returns why a setting is not supported, or "".
func refused(key, value string) string {
	switch value {
	case "", "null", "false", "{}", "[]", `""`:
		return ""
	}
	switch key {
	case "use_dora":
		return "DoRA " + mergeFirst
	case "modules_to_save":
		return "whole modules next to the factors are not supported; without embeddings, merge the adapter with PEFT (merge_and_unload)"
	case "fan_in_fan_out", "lora_bias", "megatron_config", "trainable_token_indices", "layer_replication", "target_parameters",
		"alora_invocation_tokens", "arrow_config", "monteclora_config":
		return mergeFirst
	case "init_lora_weights": // the factors belong to a base from which PEFT has subtracted their first values
		name := strings.ToLower(strings.Trim(value, `"`))
		for _, changes := range []string{"pissa", "corda", "olora", "loftq"} {
			if strings.HasPrefix(name, changes) {
				return fmt.Sprintf("is %.40q, which changes the base; it %s, or convert it (path_initial_model_for_weight_conversion)",
					name, mergeFirst)
			}
		}
	}
	if strings.HasPrefix(key, "use_") && key != "use_rslora" { // a variant of LoRA with another sum
		return mergeFirst
	}
	return ""
}

// readPatterns reads an object of patterns in its order, because the first match counts.
func readPatterns(text json.RawMessage) (out []pattern, err error) {
	if s := strings.TrimSpace(string(text)); s == "" || s == "null" {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("is not an object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var v float64
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("the value of %.40q is not a number", key)
		}
		name, _ := key.(string)
		if len(name) > maxPattern || len(out) == maxEntries {
			return nil, fmt.Errorf("more than %d patterns, or one longer than %d bytes", maxEntries, maxPattern)
		}
		match, err := regexp.Compile(`^(?:.*\.)?(?:` + name + `)$`)
		if err != nil {
			return nil, fmt.Errorf("the pattern %.40q is not a regular expression that this program reads: %v", name, err)
		}
		out = append(out, pattern{match, v})
	}
	return out, nil
}

// of returns the rank and the scale of a module, as PEFT does: the first pattern that matches the end
// of its name counts.
func (c *config) of(module string) (rank int, scale float64) {
	find := func(list []pattern, value float64) float64 {
		for _, p := range list {
			if p.match.MatchString(module) {
				return p.value
			}
		}
		return value
	}
	rank = int(find(c.ranks, float64(c.rank)))
	alpha := find(c.alphas, c.alpha)
	if c.squareRoot {
		return rank, alpha / math.Sqrt(float64(rank))
	}
	return rank, alpha / float64(rank)
}
