package tokenizer

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// config has the settings of tokenizer_config.json and special_tokens_map.json.
type config struct {
	bos, eos       string
	class          string
	addBOS, addEOS *bool
	added          []*addedToken // added_tokens_decoder
}

// llamaLike reports whether add_bos_token and add_eos_token replace the template of tokenizer.json.
// transformers does so for these classes (LlamaTokenizerFast).
func (c *config) llamaLike() bool {
	switch strings.TrimSuffix(c.class, "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer":
		return true
	}
	return false
}

// parseConfig parses tokenizer_config.json and special_tokens_map.json. Missing files are empty.
func parseConfig(data, specials []byte) config {
	var c config
	members := func(name string, data []byte) object {
		if len(data) == 0 {
			return object{path: name + ":"}
		}
		return parseFile(name, data)
	}
	o, m := members(configFile, data), members(specialsFile, specials)
	s := attempt.Must(readSpecials(o.fields, m.fields))
	c.bos, c.eos = s.named["bos_token"], s.named["eos_token"]
	c.class = o.text("tokenizer_class", "")
	for _, f := range []struct {
		field string
		to    **bool
	}{{"add_bos_token", &c.addBOS}, {"add_eos_token", &c.addEOS}} {
		if o.at(f.field).null() {
			continue
		}
		v := o.flag(f.field, false)
		*f.to = &v
	}
	c.parseAdded(o.at("added_tokens_decoder"))
	return c
}

func (c *config) parseAdded(n node) {
	if n.null() {
		return
	}
	o := n.object()
	if len(o.fields) > maxAddedTokens {
		panic(attempt.Failure{Err: invalid(n.path, "has %d entries, the limit is %d", len(o.fields), maxAddedTokens)})
	}
	for key := range o.fields {
		t := parseAddedToken(o.at(key).object())
		t.id = (node{join(o.path, key), []byte(key)}).id()
		c.added = append(c.added, t)
	}
}
