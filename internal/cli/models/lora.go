package models

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// maxSmallFile is the maximum size in bytes of a file of smallFiles. The largest published
// tokenizer.json has 35 MB.
const maxSmallFile = 256 << 20

// smallFiles lists the files of a checkpoint other than its weights and chat templates. A file
// of an adapter replaces that of its base.
var smallFiles = []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
	"special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt"}

// templatesOf returns the chat templates of an adapter with its base. If the adapter has a default
// template, only its own templates apply. Otherwise each of its templates replaces that of the
// base with the same name.
func templatesOf(base, adapter string) (map[string]string, error) {
	own, err := tokenizer.FolderTemplates(adapter)
	if err != nil || own["default"] != "" {
		return own, err
	}
	out, err := tokenizer.FolderTemplates(base)
	if err != nil || out == nil {
		return own, err
	}
	maps.Copy(out, own)
	return out, nil
}

// Merged returns the folder of a LoRA adapter that is merged into its base. The folder is in the
// user's cache, and its name is a hash of both. So all processes of a machine share one merge.
func Merged(e *ui.Env, adapter string) (string, error) {
	base, err := baseOf(e, adapter)
	if err != nil {
		return "", err
	}
	key, err := mergeKey(base, adapter)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	at, name := filepath.Join(cache, "shoal", "merged", key), mergedName(adapter)
	if dir := filepath.Join(at, name); ui.Exists(filepath.Join(dir, "config.json")) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return "", fmt.Errorf("merging %s: %w", adapter, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(at), "new-")
	if err != nil {
		return "", fmt.Errorf("merging %s: %w", adapter, err)
	}
	defer os.RemoveAll(tmp)
	if err := mergeInto(filepath.Join(tmp, name), base, adapter); err != nil {
		return "", fmt.Errorf("merging %s: %w", adapter, err)
	}
	if keyNow, err := mergeKey(base, adapter); err != nil || keyNow != key {
		return "", errors.Join(fmt.Errorf("merging %s: its files or those of %s changed during the merge: try again when they are complete",
			adapter, base), err)
	}
	if err := os.Rename(tmp, at); err != nil && !ui.Exists(filepath.Join(at, name, "config.json")) { // another process may have been faster
		return "", fmt.Errorf("merging %s: %w", adapter, err)
	}
	return filepath.Join(at, name), nil
}

// mergedName returns the name of the merged folder. The model then has the name of the adapter.
func mergedName(adapter string) string {
	name := layout.NameOf(adapter)
	if strings.Contains(name, "/") {
		return layout.RepoFolder(name)
	}
	return name
}

// baseOf finds the base folder that an adapter names. It resolves a relative path from the
// folder of the adapter first.
func baseOf(e *ui.Env, adapter string) (string, error) {
	base, err := lora.BaseOf(adapter)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{filepath.Join(adapter, base), base} {
		if found, err := layout.Locate(dir); err == nil {
			dir = found
		}
		if base != "" && ui.Exists(filepath.Join(dir, "config.json")) {
			return dir, nil
		}
	}
	if _, ok := fetchable(base); ok {
		at, err := FindFiles(e, base)
		if err != nil {
			return "", fmt.Errorf("%s is a LoRA adapter of %s: %w", adapter, base, err)
		}
		return at, nil
	}
	return "", fmt.Errorf("%s is a LoRA adapter of %q, which is not a folder on this machine: set base_model_name_or_path in its "+
		"adapter_config.json to the folder of its base", adapter, base)
}

// mergeKey returns a hash of the contents of an adapter and its base.
func mergeKey(base, adapter string) (string, error) {
	ck, err := checkpoint.Open(base)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, "shoal merge 3", ck.Hash())
	if err := ck.Close(); err != nil {
		return "", err
	}
	files := []string{filepath.Join(adapter, "adapter_config.json"), filepath.Join(adapter, "adapter_model.safetensors")}
	for _, dir := range []string{base, adapter} {
		for _, name := range smallFiles {
			files = append(files, filepath.Join(dir, name))
		}
	}
	for _, file := range files {
		f, _, err := modelfile.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}
		fmt.Fprintln(h, filepath.Base(file))
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	templates, err := templatesOf(base, adapter)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		fmt.Fprintf(h, "template %q %d\n%s", name, len(templates[name]), templates[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:12]), nil
}

func mergeInto(out, base, adapter string) error {
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := lora.Merge(base, adapter, out); err != nil {
		return err
	}
	templates, err := templatesOf(base, adapter)
	if err != nil {
		return err
	}
	if err := tokenizer.WriteTemplates(out, templates); err != nil {
		return err
	}
	for _, name := range slices.Backward(smallFiles) { // config.json is last, since it marks a complete model
		for _, dir := range []string{adapter, base} {
			text, err := modelfile.Read(filepath.Join(dir, name), maxSmallFile)
			if errors.Is(err, os.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
				return err
			}
			break
		}
	}
	return nil
}
