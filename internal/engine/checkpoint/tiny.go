package checkpoint

import (
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
)

// Tiny returns a checkpoint with the config of tinyconfig.Of and random weights, the same on every machine.
// It reads no files.
func Tiny(architecture string) (*Checkpoint, error) {
	text, err := tinyconfig.Of(architecture)
	if err != nil {
		return nil, err
	}
	c, err := model.ParseConfig("", text, nil)
	if err != nil {
		return nil, err
	}
	return made("tiny "+architecture, c), nil
}
