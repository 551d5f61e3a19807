package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/internal/modelfile"
	"github.com/shoal-llm/shoal/tokenizer/jinja"
)

var (
	// ErrNoChatTemplate: the checkpoint says nothing about chats; only completions work.
	ErrNoChatTemplate = errors.New("tokenizer: no chat template in tokenizer_config.json or chat_template.jinja")
	// ErrChatInput: the messages, tools or options cannot be given to this template.
	// (A template's own refusal is jinja.ErrRaised.)
	ErrChatInput = errors.New("tokenizer: bad chat input")
)

const (
	maxChatConfig = 16 << 20  // bytes of tokenizer_config.json
	maxChatVocab  = 256 << 20 // bytes of tokenizer.json
)

// ChatTemplate turns messages into the text that a model was trained on. It is
// safe for concurrent use.
type ChatTemplate struct {
	source   map[string]string // by name; "default" is the usual one
	parsed   map[string]*jinja.Template
	special  *jinja.Dict // bos_token and its like, as variables
	controls *chatControls
	content  chatContent
}

// chatContent is the form of message content that a template understands.
type chatContent uint8

const (
	chatEither chatContent = iota // strings, and lists of parts
	chatString                    // strings only: parts are joined
	chatList                      // lists only: strings are wrapped
)

// LoadChatTemplate reads the template of a checkpoint folder: chat_template.jinja
// if there is one (as transformers prefers it), else chat_template in
// tokenizer_config.json, a string or a list of named templates. Names of
// special tokens come from tokenizer_config.json and tokenizer.json. A GGUF file
// (named, or the only one in its folder) has the same in its metadata.
func LoadChatTemplate(dir string) (*ChatTemplate, error) { return LoadChatTemplateFrom(dir, "") }

// LoadChatTemplateFrom takes the template from a file instead, unless that is "", and
// the names of special tokens from the checkpoint as ever.
func LoadChatTemplateFrom(dir, template string) (*ChatTemplate, error) {
	var instead map[string]string
	if template != "" {
		text, err := chatReadFile(template, maxChatConfig)
		if err != nil {
			return nil, err
		}
		if text == nil {
			return nil, fmt.Errorf("tokenizer: there is no chat template at %s", template)
		}
		instead = map[string]string{"default": string(text)}
	}
	if file, ok, err := ggufFile(dir); err != nil {
		return nil, err
	} else if ok {
		return chatTemplateGGUF(file, instead)
	}
	var config map[string]json.RawMessage
	if err := chatReadJSON(filepath.Join(dir, "tokenizer_config.json"), maxChatConfig, &config); err != nil {
		return nil, err
	}
	source := instead
	if source == nil {
		var err error
		if source, err = chatSources(dir, config["chat_template"]); err != nil {
			return nil, err
		}
	}
	var vocab struct {
		Added []chatAdded `json:"added_tokens"`
	}
	if err := chatReadJSON(filepath.Join(dir, "tokenizer.json"), maxChatVocab, &vocab); err != nil {
		return nil, err
	}
	return newChatTemplate(source, config, vocab.Added)
}

// chatTemplateGGUF reads the files that the metadata stands for.
func chatTemplateGGUF(file string, source map[string]string) (*ChatTemplate, error) {
	files, err := readGGUF(file)
	if err != nil {
		return nil, err
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(files.Config, &config); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", file, err)
	}
	var vocab struct {
		Added []chatAdded `json:"added_tokens"`
	}
	if err := json.Unmarshal(files.Tokenizer, &vocab); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", file, err)
	}
	if source == nil {
		if source, err = chatNamed(config["chat_template"], filepath.Base(file)); err != nil {
			return nil, err
		}
	}
	return newChatTemplate(source, config, vocab.Added)
}

func newChatTemplate(source map[string]string, config map[string]json.RawMessage, added []chatAdded) (*ChatTemplate, error) {
	c := &ChatTemplate{source: source, parsed: map[string]*jinja.Template{}}
	for name, text := range source {
		t, err := jinja.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("tokenizer: chat template %q: %w", name, err)
		}
		c.parsed[name] = t
	}
	if err := c.readSpecial(config, added); err != nil {
		return nil, err
	}
	c.content = c.probeContent()
	return c, nil
}

// Source is the text of the default template, by which an API knows how the model writes calls.
func (c *ChatTemplate) Source() string { return c.source["default"] }

// chatReadJSON leaves v alone if there is no such file.
func chatReadJSON(path string, limit int64, v any) error {
	data, err := chatReadFile(path, limit)
	if err != nil || data == nil {
		return err
	}
	if err := modelfile.Unmarshal(data, v); err != nil {
		return fmt.Errorf("tokenizer: %s: %w", filepath.Base(path), err)
	}
	return nil
}

// chatReadFile returns nil if there is no such file.
func chatReadFile(path string, limit int64) ([]byte, error) {
	data, err := modelfile.Read(path, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return data, nil
}

func chatSources(dir string, raw json.RawMessage) (map[string]string, error) {
	file, err := chatReadFile(filepath.Join(dir, "chat_template.jinja"), maxChatConfig)
	if err != nil {
		return nil, err
	}
	if file != nil {
		return map[string]string{"default": string(file)}, nil
	}
	return chatNamed(raw, "folder "+filepath.Base(dir))
}

// chatNamed reads chat_template: a string, or a list of named templates.
func chatNamed(raw json.RawMessage, where string) (map[string]string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, fmt.Errorf("%w (%s)", ErrNoChatTemplate, where)
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{"default": one}, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("tokenizer: tokenizer_config.json: chat_template is neither a string nor a list of named templates: %w", err)
	}
	out := map[string]string{}
	for _, t := range list {
		out[t.Name] = t.Template
	}
	if _, ok := out["default"]; !ok {
		return nil, fmt.Errorf("%w: chat_template has no template named \"default\", only %q", ErrNoChatTemplate, slices.Sorted(maps.Keys(out)))
	}
	return out, nil
}

// chatAdded is an added token of tokenizer.json or added_tokens_decoder.
type chatAdded struct {
	Content string `json:"content"`
	Special bool   `json:"special"`
}

var chatSpecialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

func (c *ChatTemplate) readSpecial(config map[string]json.RawMessage, added []chatAdded) error {
	c.special = jinja.NewDict()
	for _, name := range chatSpecialNames {
		if s := chatTokenText(config[name]); s != "" {
			c.special.Set(name, jinja.Trusted(s))
			added = append(added, chatAdded{s, true})
		}
	}
	var more []json.RawMessage
	if raw := config["additional_special_tokens"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &more); err != nil {
			return fmt.Errorf("tokenizer: tokenizer_config.json: additional_special_tokens: %w", err)
		}
	}
	list := jinja.NewList()
	for _, raw := range more {
		if s := chatTokenText(raw); s != "" {
			list = list.With(jinja.Trusted(s))
			added = append(added, chatAdded{s, true})
		}
	}
	if list.Len() > 0 {
		c.special.Set("additional_special_tokens", list)
	}
	if raw := config["added_tokens_decoder"]; len(raw) > 0 {
		var byID map[string]chatAdded
		if err := json.Unmarshal(raw, &byID); err != nil {
			return fmt.Errorf("tokenizer: tokenizer_config.json: added_tokens_decoder: %w", err)
		}
		for _, a := range byID {
			added = append(added, a)
		}
	}
	c.controls = newChatControls(added, c.source)
	return nil
}

// chatTokenText reads a token that is written as a string or as {"content": ...}.
func chatTokenText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var a chatAdded
	if json.Unmarshal(raw, &a) == nil {
		return a.Content
	}
	return ""
}
