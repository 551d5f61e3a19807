package checkpoint

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// reshape gives a tensor of one shape another one.
func (c *Checkpoint) reshape(name string, from, to []int) {
	if p, ok := c.at[name]; ok && fmt.Sprint(p.Shape) == fmt.Sprint(from) {
		p.Shape = to
		c.at[name] = p
	}
}

// rename gives a tensor of the files another name, if there is one.
func (c *Checkpoint) rename(from, to string) error {
	p, ok := c.at[from]
	if !ok {
		return nil
	}
	delete(c.at, from)
	p.Name = to
	return c.add(p)
}

// add registers a tensor.
func (c *Checkpoint) add(p place) error {
	if old, ok := c.at[p.Name]; ok {
		return &model.Error{File: p.path, Tensor: p.Name, Kind: model.ErrFormat, Detail: fmt.Sprintf("is a second %s", old.Name)}
	}
	c.at[p.Name] = p
	return nil
}
