package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// Names of the templates for requests, and of the folder with further ones.
const (
	chatDefault  = "default"
	chatToolUse  = "tool_use"
	chatFile     = "chat_template.jinja"
	chatFolder   = "additional_chat_templates"
	maxTemplates = 64
)

// FolderTemplates reads the chat templates of a checkpoint folder, by name. A folder without
// templates is not an error.
func FolderTemplates(dir string) (map[string]string, error) {
	var config map[string]json.RawMessage
	if err := chatReadJSON(filepath.Join(dir, configFile), maxChatConfig, &config); err != nil {
		return nil, err
	}
	sources, err := chatSources(dir, config["chat_template"])
	if errors.Is(err, ErrNoChatTemplate) {
		return nil, nil
	}
	return sources, err
}

// WriteTemplates writes templates into a folder, as files that take precedence over its
// tokenizer_config.json.
func WriteTemplates(dir string, templates map[string]string) error {
	for name, text := range templates {
		file := filepath.Join(dir, chatFolder, name+".jinja")
		if name == chatDefault {
			file = filepath.Join(dir, chatFile)
		} else if filepath.Base(file) != name+".jinja" {
			return fmt.Errorf("tokenizer: the chat template %.100q cannot be written: its name is not a file name", name)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
	}
	return nil
}

// chatSources reads the templates of a folder, by name. chat_template.jinja becomes the default and
// replaces all templates in tokenizer_config.json (raw). additional_chat_templates has further
// ones, one per file.
func chatSources(dir string, raw json.RawMessage) (map[string]string, error) {
	out := map[string]string{}
	file, err := chatReadFile(filepath.Join(dir, chatFile), maxChatConfig)
	if err != nil {
		return nil, err
	}
	more, err := os.ReadDir(filepath.Join(dir, chatFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	more = slices.DeleteFunc(more, func(e fs.DirEntry) bool { return e.IsDir() || !strings.HasSuffix(e.Name(), ".jinja") })
	if len(more) > maxTemplates {
		return nil, fmt.Errorf("tokenizer: %s has %d templates; the limit is %d", chatFolder, len(more), maxTemplates)
	}
	if file != nil {
		out[chatDefault] = string(file)
	} else if out, err = chatNamed(raw, "folder "+filepath.Base(dir)); err != nil && (len(more) == 0 || !errors.Is(err, ErrNoChatTemplate)) {
		return nil, err
	} else if out == nil {
		out = map[string]string{}
	}
	for _, e := range more {
		text, err := chatReadFile(filepath.Join(dir, chatFolder, e.Name()), maxChatConfig)
		if err != nil {
			return nil, err
		}
		if text != nil {
			out[strings.TrimSuffix(e.Name(), ".jinja")] = string(text)
		}
	}
	return out, nil
}

// chatNamed reads chat_template: a string, or a list of named templates.
func chatNamed(raw json.RawMessage, where string) (map[string]string, error) {
	if (node{raw: raw}).null() {
		return nil, fmt.Errorf("%w (%s)", ErrNoChatTemplate, where)
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{chatDefault: one}, nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	out := map[string]string{}
	if json.Unmarshal(raw, &out) == nil { // the form that transformers keeps in memory
		return out, nil
	}
	out = map[string]string{}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("tokenizer: tokenizer_config.json: chat_template is neither a string nor a list of named templates: %s",
			modelfile.Words(err.Error()))
	}
	for _, t := range list {
		out[t.Name] = t.Template
	}
	return out, nil
}

// chatChoose returns the names of the templates for requests without and with tools, or "". A
// single template serves both.
func chatChoose(source map[string]string) (plain, tools string) {
	if _, ok := source[chatDefault]; ok {
		plain, tools = chatDefault, chatDefault
	} else if len(source) == 1 {
		for name := range source {
			return name, name
		}
	}
	if _, ok := source[chatToolUse]; ok {
		tools = chatToolUse
	}
	return plain, tools
}
