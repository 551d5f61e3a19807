package cli

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

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// maxSmallFile bounds the files of small; the largest are tokenizer.json, 35 MB where published.
const maxSmallFile = 256 << 20

// smallFiles lists the files of a checkpoint other than its weights and chat templates. Those of an adapter
// come before those of its base.
var smallFiles = []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt"}

// templatesOf is the chat templates of an adapter over its base. An adapter that brings a
// default template brings all of them; else each of its templates replaces the base's of that name.
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

// merged is the folder of a LoRA adapter merged into its base: made once, in the user's
// cache, under a name of what both hold, so that every process of a machine comes to one.
func merged(e *env, adapter string) (string, error) {
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
	if dir := filepath.Join(at, name); exists(filepath.Join(dir, "config.json")) {
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
		return "", errors.Join(fmt.Errorf("merging %s: its files or those of %s changed meanwhile: start again when they are complete", adapter, base), err)
	}
	if err := os.Rename(tmp, at); err != nil && !exists(filepath.Join(at, name, "config.json")) { // another process may have come first
		return "", fmt.Errorf("merging %s: %w", adapter, err)
	}
	return filepath.Join(at, name), nil
}

// mergedName is the name of the merged folder. It makes the model be called as the adapter is.
func mergedName(adapter string) string {
	name := layout.NameOf(adapter)
	if strings.Contains(name, "/") {
		return layout.RepoFolder(name)
	}
	return name
}

// baseOf finds the folder that an adapter says it belongs to, from its own folder on.
func baseOf(e *env, adapter string) (string, error) {
	base, err := model.BaseOfLoRA(adapter)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{filepath.Join(adapter, base), base} {
		if found, err := layout.Locate(dir); err == nil {
			dir = found
		}
		if base != "" && exists(filepath.Join(dir, "config.json")) {
			return dir, nil
		}
	}
	if _, ok := fetchable(base); ok {
		at, err := findFiles(e, base)
		if err != nil {
			return "", fmt.Errorf("%s is a LoRA adapter of %s: %w", adapter, base, err)
		}
		return at, nil
	}
	return "", fmt.Errorf("%s is a LoRA adapter of %q, which is no folder here: let base_model_name_or_path in its adapter_config.json name the folder of its base", adapter, base)
}

// mergeKey names what an adapter and its base hold.
func mergeKey(base, adapter string) (string, error) {
	ck, err := model.Open(base)
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
	if err := model.MergeLoRA(base, adapter, out); err != nil {
		return err
	}
	templates, err := templatesOf(base, adapter)
	if err != nil {
		return err
	}
	if err := tokenizer.WriteTemplates(out, templates); err != nil {
		return err
	}
	for _, name := range slices.Backward(smallFiles) { // config.json, by which a model is known, is last
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
