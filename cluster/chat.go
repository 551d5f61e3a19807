package cluster

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// chatTemplate is the checkpoint's, or nil when it has none: then only
// completions work, and the API says so.
func chatTemplate(dir, file string) (api.ChatTemplate, error) {
	t, err := tokenizer.LoadChatTemplateFrom(dir, file)
	if errors.Is(err, tokenizer.ErrNoChatTemplate) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return api.FromTemplate(t), nil
}
