package models

import (
	"path/filepath"
	"testing"
)

// TestFindBundled: checkpoints, LoRA adapters and SwiftKV adapters that come with the program.
func TestFindBundled(t *testing.T) {
	for _, name := range []string{bundled, BundledTools, "models/fry-swiftkv"} {
		if dir := FindBundled(name); filepath.Base(dir) != filepath.Base(name) {
			t.Errorf("%s: found %q", name, dir)
		}
	}
	if dir := FindBundled("models/none"); dir != "" {
		t.Errorf("found %s", dir)
	}
}
