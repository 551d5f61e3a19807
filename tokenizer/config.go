package tokenizer

import (
	"cmp"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// config is what tokenizer_config.json and special_tokens_map.json say.
type config struct {
	bos, eos       string
	class          string
	addBOS, addEOS *bool
	added          []*addedToken // added_tokens_decoder
}

// llamaLike: the classes whose add_bos_token and add_eos_token replace the
// template of tokenizer.json, with these defaults (transformers, LlamaTokenizerFast).
func (c *config) llamaLike() bool {
	switch strings.TrimSuffix(c.class, "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer":
		return true
	}
	return false
}

// parseConfig reads tokenizer_config.json, or special_tokens_map.json, which
// holds a subset. Empty data is an empty file.
func parseConfig(name string, data []byte) config {
	var c config
	if len(data) == 0 {
		return c
	}
	o := parseFile(name, data)
	for _, f := range []struct {
		field string
		to    *string
	}{{"bos_token", &c.bos}, {"eos_token", &c.eos}} {
		*f.to = specialName(o.at(f.field))
	}
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

// specialName reads a token written as a string or as {"content": string}.
func specialName(n node) string {
	if n.null() {
		return ""
	}
	if n.raw[0] == '{' {
		o := n.object()
		return o.at("content").str()
	}
	return n.str()
}

func (c *config) parseAdded(n node) {
	if n.null() {
		return
	}
	o := n.object()
	if len(o.fields) > maxAddedTokens {
		panic(attempt.Failure{Err: invalid(n.path, "has %d entries, at most %d are taken", len(o.fields), maxAddedTokens)})
	}
	for key := range o.fields {
		t := parseAddedToken(o.at(key).object())
		t.id = (node{join(o.path, key), []byte(key)}).id()
		c.added = append(c.added, t)
	}
}

// fill takes from d what c does not say.
func (c *config) fill(d config) {
	c.bos, c.eos = cmp.Or(c.bos, d.bos), cmp.Or(c.eos, d.eos)
}
