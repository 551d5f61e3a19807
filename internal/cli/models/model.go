package models

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// The checkpoints that come with the project: the default model, and an adapter of it for tool
// calls.
const (
	bundled      = "models/fry"
	BundledTools = "models/fry-tools"
)

// ModelFlag selects the model; the default is the bundled one.
type ModelFlag struct {
	Model   string `short:"m" env:"SHOAL_MODEL" placeholder:"MODEL" help:"Model: a folder, a .gguf file, a LoRA adapter, or org/name of a hub, which is pulled if necessary; shoal pull --help lists all forms (default: the bundled model). Commands that serve take several: repeat the flag, with settings of one as MODEL,KEY=VALUE (docs/several-models.md)."`
	SwiftKV string `name:"swiftkv" type:"path" placeholder:"DIR" help:"Folder of a SwiftKV adapter for the checkpoint. Prompt tokens then skip the later layers. The result is a different model with its own hash."`
}

// AdapterNote returns a note about an adapter in the same folder as a checkpoint, or "".
func AdapterNote(dir string) string {
	if !ui.Exists(filepath.Join(dir, "adapter_config.json")) || lora.IsFolder(dir) {
		return ""
	}
	return "adapter_config.json: the LoRA adapter in the folder of a complete model is not applied; move it to a folder of its own to use it"
}

// Dir returns the path of the model of the flag, or of the bundled one.
func (f ModelFlag) Dir(e *ui.Env) (string, error) {
	word := f.Model
	if word == "" {
		if word = FindBundled(bundled); word == "" {
			return "", fmt.Errorf("the bundled model %s was not found in the working directory, the folder of the program, or a folder above "+
				"them: choose a model with --model", bundled)
		}
	}
	return FindModel(e, word)
}

// FindBundled finds a checkpoint or adapter that comes with the program, such as models/fry. It searches the
// working directory, the folder of the executable and the source folder, with all folders above
// them, and share/shoal below each. It returns "" if there is none.
func FindBundled(name string) string {
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
			for _, below := range []string{"", "share/shoal"} { // packages install it in the second
				dir := filepath.Join(at, below, name)
				if ui.Exists(filepath.Join(dir, "config.json")) || ui.Exists(filepath.Join(dir, "swiftkv.json")) || lora.IsFolder(dir) {
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

// ShapeNames lists the names of shapes, for messages.
func ShapeNames() string { return strings.Join(checkpoint.Shapes(), ", ") }
