package models

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// A tiny model, and an adapter of it.
const (
	tinyBase    = "../../engine/model/testdata/llama"
	tinyAdapter = "../../../actors/socket/testdata/lora/llama_r8"
)

// nameBase changes the base of an adapter to ../base.
func nameBase(t *testing.T, adapter string) {
	t.Helper()
	config := filepath.Join(adapter, "adapter_config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(text), `: "llama"`, `: "../base"`)
	if changed == string(text) {
		t.Fatalf("%s does not name its base llama", config)
	}
	if err := os.WriteFile(config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMergedFollowsItsBase checks that a changed base gets a new merged folder, even if its
// modification time is unchanged.
func TestMergedFollowsItsBase(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	base, adapter := filepath.Join(dir, "base"), filepath.Join(dir, "adapter")
	for to, from := range map[string]string{base: tinyBase, adapter: tinyAdapter} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	nameBase(t, adapter)
	seen := map[string]string{}
	merge := func(what string) string {
		t.Helper()
		out, err := Merged(ui.Quiet(t.Context()), adapter)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(out) != "adapter" {
			t.Errorf("%s: the merged model is in %s", what, out)
		}
		seen[out] = what
		return out
	}
	first := merge("first")
	if merge("again") != first || len(seen) != 1 {
		t.Fatalf("two merges of the same files: %v", seen)
	}
	weights := filepath.Join(base, "model.safetensors")
	st, err := os.Stat(weights)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(weights, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 700), st.Size()/3+1000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(weights, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	second := merge("edited base")
	if second == first {
		t.Fatal("the old merged weights serve an edited base")
	}
	hash := func(dir string) string {
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		return ck.Hash()
	}
	if hash(first) == hash(second) {
		t.Error("both merged models have one hash")
	}
}

// The chat templates of an adapter go before those of its base, wherever a folder keeps them.
func TestMergedChatTemplates(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const (
		file, tools, config = "chat_template.jinja", "additional_chat_templates/tool_use.jinja", "tokenizer_config.json"
	)
	for what, c := range map[string]struct {
		base, adapter map[string]string
		plain, tools  string
	}{
		"folder of the base":              {map[string]string{file: "b", tools: "bt"}, nil, "b", "bt"},
		"folder of the adapter":           {map[string]string{file: "b"}, map[string]string{tools: "at"}, "b", "at"},
		"folders of both":                 {map[string]string{file: "b", tools: "bt"}, map[string]string{tools: "at"}, "b", "at"},
		"default of the adapter":          {map[string]string{file: "b", tools: "bt"}, map[string]string{file: "a"}, "a", "a"},
		"config of the adapter":           {map[string]string{file: "b"}, map[string]string{config: `{"chat_template": "a"}`}, "a", "a"},
		"config of the base":              {map[string]string{config: `{"chat_template": "b"}`}, map[string]string{config: `{}`}, "b", "b"},
		"named templates of the base":     {map[string]string{config: `{"chat_template": [{"name": "default", "template": "b"}, {"name": "tool_use", "template": "bt"}]}`}, map[string]string{config: `{}`}, "b", "bt"},
		"base's folder, adapter's config": {map[string]string{file: "b", tools: "bt"}, map[string]string{config: `{}`}, "b", "bt"},
	} {
		dir := t.TempDir()
		copyModel(t, tinyBase, filepath.Join(dir, "base"), c.base)
		copyModel(t, tinyAdapter, filepath.Join(dir, "adapter"), c.adapter)
		nameBase(t, filepath.Join(dir, "adapter"))
		out, err := Merged(ui.Quiet(t.Context()), filepath.Join(dir, "adapter"))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got, err := tokenizer.LoadChatTemplate(out)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got.Source() != c.plain || got.ToolSource() != c.tools {
			t.Errorf("%s: %q, with tools %q, want %q, %q", what, got.Source(), got.ToolSource(), c.plain, c.tools)
		}
	}
}

// copyModel copies a checkpoint without its chat template, and writes files over it.
func copyModel(t *testing.T, from, to string, files map[string]string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(to, "chat_template.jinja")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for name, text := range files {
		file := filepath.Join(to, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
