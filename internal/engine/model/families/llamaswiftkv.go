package families

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Llama with SwiftKV, in Snowflake's published layout. The files also hold the queries, keys and values of
// the base model, which are not read. "swiftkv": false means the base model.
func init() {
	model.Register(model.Family{
		Name: "LlamaSwiftKVForCausalLM",
		Read: func(f *model.Fields, c *model.Config) {
			readLlama(f, c)
			if f.Bool("swiftkv", true) {
				model.ReadSwiftKV(f, c)
			}
		},
		Beyond: func(c *model.Config, name string) bool {
			return c.SwiftKV.Layers == 0 && (name == model.NormSwiftKV || strings.Contains(name, "_proj_swiftkv."))
		},
	})
}
