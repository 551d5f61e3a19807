package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/text/jinja"
	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

var (
	// ErrNoChatTemplate: the checkpoint has no chat template; only completions work.
	ErrNoChatTemplate = errors.New("tokenizer: no chat template in tokenizer_config.json or chat_template.jinja")
	// ErrChatInput: the template cannot render these messages, tools or options. (If the template
	// itself refuses them, the error is python.ErrRaised.)
	ErrChatInput = errors.New("tokenizer: bad chat input")
)

const (
	maxChatConfig = 16 << 20  // bytes of tokenizer_config.json
	maxChatVocab  = 256 << 20 // bytes of tokenizer.json
)

// ChatTemplate renders messages as the text format that a model was trained on. It is safe for
// concurrent use.
type ChatTemplate struct {
	source   map[string]string // by name
	plain    *chatVariant      // nil: only requests with tools can be rendered
	tools    *chatVariant      // for requests with tools
	special  *python.Dict      // variables such as bos_token
	controls *chatControls
}

// chatVariant is one of a checkpoint's templates.
type chatVariant struct {
	source  string
	parsed  *jinja.Template
	content chatContent
}

// chatContent is the form of message content that a template supports.
type chatContent uint8

const (
	chatEither chatContent = iota // strings, and lists of parts
	chatString                    // strings only: parts are joined
	chatList                      // lists only: strings are wrapped
)

// LoadChatTemplate reads the templates of a checkpoint folder. It uses chat_template.jinja if
// present (like transformers), else chat_template in tokenizer_config.json, which is a string or a
// list of named templates, and also additional_chat_templates. Requests with tools use the template
// "tool_use" if present, others "default". Special tokens come from tokenizer_config.json,
// special_tokens_map.json, tokenizer.json and added_tokens.json. A GGUF file (named, or the only one in its folder)
// has the same in its metadata.
func LoadChatTemplate(dir string) (*ChatTemplate, error) { return LoadChatTemplateFrom(dir, "") }

// LoadChatTemplateFrom reads the template from a file unless template is "". Special tokens still
// come from the checkpoint.
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
	var specials map[string]json.RawMessage
	if err := chatReadJSON(filepath.Join(dir, specialsFile), maxChatConfig, &specials); err != nil {
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
	if (node{raw: config["added_tokens_decoder"]}).null() {
		var old map[string]json.RawMessage
		if err := chatReadJSON(filepath.Join(dir, addedFile), maxChatConfig, &old); err != nil {
			return nil, err
		}
		for content := range old {
			vocab.Added = append(vocab.Added, chatAdded{Content: content})
		}
	}
	return newChatTemplate(source, config, specials, vocab.Added)
}

// chatTemplateGGUF reads the template from the metadata of a GGUF file.
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
	return newChatTemplate(source, config, nil, vocab.Added)
}

// newChatTemplate builds a ChatTemplate from named sources. config and specials are the members of
// tokenizer_config.json and special_tokens_map.json.
func newChatTemplate(source map[string]string, config, specials map[string]json.RawMessage, added []chatAdded) (*ChatTemplate, error) {
	c := &ChatTemplate{source: source}
	if err := c.readSpecial(config, specials, added); err != nil {
		return nil, err
	}
	plain, tools := chatChoose(source)
	if tools == "" {
		return nil, fmt.Errorf("%w: of the templates %q none is named %q or %q", ErrNoChatTemplate,
			slices.Sorted(maps.Keys(source)), chatDefault, chatToolUse)
	}
	var err error
	if c.tools, err = c.variant(tools); err != nil {
		return nil, err
	}
	if c.plain = c.tools; plain != tools {
		c.plain, err = c.variant(plain)
	}
	return c, err
}

// variant parses the template with this name; "" gives nil.
func (c *ChatTemplate) variant(name string) (*chatVariant, error) {
	if name == "" {
		return nil, nil
	}
	t, err := jinja.Parse(c.source[name])
	if err != nil {
		return nil, fmt.Errorf("tokenizer: chat template %q: %w", name, err)
	}
	v := &chatVariant{source: c.source[name], parsed: t}
	v.content = c.probeContent(v)
	return v, nil
}

// Source returns the template text for requests without tools, or "".
func (c *ChatTemplate) Source() string {
	if c.plain == nil {
		return ""
	}
	return c.plain.source
}

// ToolSource returns the template text for requests with tools.
func (c *ChatTemplate) ToolSource() string { return c.tools.source }

// Sources returns the texts of all templates of the checkpoint, by name.
func (c *ChatTemplate) Sources() map[string]string { return maps.Clone(c.source) }

// chatReadJSON leaves v unchanged if the file does not exist.
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

// chatReadFile returns nil if the file does not exist.
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

// chatAdded is an added token of tokenizer.json or added_tokens_decoder.
type chatAdded struct {
	Content string `json:"content"`
	Special bool   `json:"special"`
}

// readSpecial turns the special tokens into variables and determines the control tokens.
func (c *ChatTemplate) readSpecial(config, specials map[string]json.RawMessage, added []chatAdded) error {
	tokens, err := readSpecials(config, specials)
	if err != nil {
		return err
	}
	c.special = python.NewDict()
	for _, name := range slices.Sorted(maps.Keys(tokens.named)) {
		c.special.Set(name, python.Trusted(tokens.named[name]))
		added = append(added, chatAdded{tokens.named[name], true})
	}
	list := python.NewList()
	for _, s := range tokens.extra {
		list = list.With(python.Trusted(s))
		added = append(added, chatAdded{s, true})
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
