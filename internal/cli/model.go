package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// The checkpoints that come with the project: what is served by itself, and an adapter of it
// that calls functions.
const (
	bundled      = "models/fry"
	bundledTools = "models/fry-tools"
)

// modelFlag names a checkpoint folder; without it the bundled model is served.
type modelFlag struct {
	Model   string `short:"m" placeholder:"MODEL" help:"Model: a folder, a .gguf file, a LoRA adapter, or org/name of a hub, which is pulled if necessary; shoal pull --help lists all forms (default: the bundled model)."`
	SwiftKV string `name:"swiftkv" type:"path" placeholder:"DIR" help:"Folder of a SwiftKV adapter for the checkpoint. Prompt tokens then skip the later layers. The result is a different model with its own hash."`
}

// adapterNote tells of an adapter that lies beside a checkpoint; "" when there is none.
func adapterNote(dir string) string {
	if !exists(filepath.Join(dir, "adapter_config.json")) || model.IsLoRA(dir) {
		return ""
	}
	return "adapter_config.json: a LoRA adapter lies beside a whole model, and is not applied: put it in a folder of its own to have it"
}

// dir finds the model of the flag, or the bundled one.
func (f modelFlag) dir(e *env) (string, error) {
	word := f.Model
	if word == "" {
		if word = findBundled(bundled); word == "" {
			return "", fmt.Errorf("the bundled model %s was not found above the working directory or the program: name a model with --model", bundled)
		}
	}
	return findModel(e, word)
}

// findBundled finds a checkpoint that came with the program above the working directory or the
// executable, there or in share/shoal, or where the sources were built from.
// name is as models/fry; "": it is not here.
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
				if dir := filepath.Join(at, below, name); exists(filepath.Join(dir, "config.json")) || model.IsLoRA(dir) {
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
