package checkpoint

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// bodyName is the name that a tensor of a body alone has in a checkpoint with a head.
func bodyName(name string) string {
	if first, _, _ := strings.Cut(name, "."); first == "layers" || name == "embed_tokens.weight" || name == "norm.weight" {
		return "model." + name
	}
	return name
}

// ownName is the name of a file's tensor in this package.
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

// dropHead makes a checkpoint of a body alone one without a head.
func (c *Checkpoint) dropHead() {
	if _, has := c.at[model.Head]; c.body && !has {
		c.Config.Headless = true
	}
}
