package tokenizer

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// Specials returns the ids of all special tokens in ascending order.
func (t *Tokenizer) Specials() []int32 {
	var out []int32
	for id, a := range t.added.byID {
		if a.special {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// BOS returns the beginning-of-sequence token of tokenizer_config.json.
func (t *Tokenizer) BOS() (int32, bool) { return t.named(t.config.bos) }

// Special returns a special token by its name in tokenizer_config.json ("bos_token"), or "" if
// unset.
func (c *ChatTemplate) Special(name string) string {
	v, _ := c.special.Get(name)
	s, _ := v.(python.Str)
	return s.String()
}
