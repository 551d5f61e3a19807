package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// bundled is the checkpoint that comes with the project.
const bundled = "models/fry"

// modelFlag names a checkpoint folder; without it the bundled model is served.
type modelFlag struct {
	Model   string `short:"m" type:"path" placeholder:"PATH" help:"Checkpoint: a Hugging Face folder or a .gguf file (default: the bundled model)."`
	SwiftKV string `name:"swiftkv" type:"path" placeholder:"DIR" help:"A SwiftKV adapter of the checkpoint: prompts leave after its first layers. Another model, with a hash of its own."`
}

// adapterNote tells of an adapter that lies beside a checkpoint; "" when there is none.
func adapterNote(dir string) string {
	if !exists(filepath.Join(dir, "adapter_config.json")) {
		return ""
	}
	return "adapter_config.json: a LoRA adapter lies here, which is not applied: the answers are the base model's. Merge it into the weights to have it"
}

// dir finds the checkpoint: the flag, or the bundled one above the working
// directory or the executable, there or in share/shoal, or where the sources were built from.
func (f modelFlag) dir() (string, error) {
	if f.Model != "" {
		if note := adapterNote(f.Model); note != "" && !exists(filepath.Join(f.Model, "config.json")) {
			return "", fmt.Errorf("%s is a LoRA adapter, not a model (it has adapter_config.json and no config.json): adapters are not applied here; merge it into its base model and serve that", f.Model)
		}
		return f.Model, nil
	}
	if dir := findBundled(bundled); dir != "" {
		return dir, nil
	}
	return "", fmt.Errorf("the bundled model %s was not found above the working directory or the program: name a checkpoint with --model DIR", bundled)
}

// findBundled finds a checkpoint that came with the program, as models/fry; "": it is not here.
func findBundled(name string) string {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	for _, at := range starts {
		for {
			for _, below := range []string{"", "share/shoal"} { // the second: as packages install it
				if dir := filepath.Join(at, below, name); exists(filepath.Join(dir, "config.json")) {
					return dir
				}
			}
			up := filepath.Dir(at)
			if up == at {
				break
			}
			at = up
		}
	}
	return ""
}
