package checkpoint

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// bodyName converts a tensor name of a checkpoint without a head to the name in one with a head.
func bodyName(name string) string {
	if first, _, _ := strings.Cut(name, "."); first == "layers" || name == "embed_tokens.weight" || name == "norm.weight" {
		return "model." + name
	}
	return name
}

// ownName returns the name of a file's tensor in this package.
func (c *Checkpoint) ownName(name string) string {
	if c.nested {
		return decoderName(name)
	}
	if arch, _ := model.Lookup(c.Config.Architecture); arch.Rename != nil {
		return arch.Rename(&c.Config, name)
	}
	own := bodyName(name)
	c.body = c.body || own != name
	return own
}

// dropHead removes the head from the config of a checkpoint that has none.
func (c *Checkpoint) dropHead() {
	if _, has := c.at[model.Head]; c.body && !has {
		c.Config.Headless = true
	}
}
