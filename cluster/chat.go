package cluster

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// chatTemplate returns the checkpoint's chat template, or nil if it has none. The API then serves
// completions only and reports that.
func chatTemplate(dir, file string) (engine.ChatTemplate, error) {
	t, err := tokenizer.LoadChatTemplateFrom(dir, file)
	if errors.Is(err, tokenizer.ErrNoChatTemplate) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return engine.FromTemplate(t), nil
}
