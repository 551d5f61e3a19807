package tokenizer

import (
	"cmp"
	"strings"
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
func parseConfig(name string, data []byte) (config, error) {
	var c config
	if len(data) == 0 {
		return c, nil
	}
	o, err := parseFile(name, data)
	if err != nil {
		return c, err
	}
	for _, f := range []struct {
		field string
		to    *string
	}{{"bos_token", &c.bos}, {"eos_token", &c.eos}} {
		if *f.to, err = specialName(o.at(f.field)); err != nil {
			return c, err
		}
	}
	if c.class, err = o.text("tokenizer_class", ""); err != nil {
		return c, err
	}
	for _, f := range []struct {
		field string
		to    **bool
	}{{"add_bos_token", &c.addBOS}, {"add_eos_token", &c.addEOS}} {
		if o.at(f.field).null() {
			continue
		}
		v, err := o.flag(f.field, false)
		if err != nil {
			return c, err
		}
		*f.to = &v
	}
	return c, c.parseAdded(o.at("added_tokens_decoder"))
}

// specialName reads a token written as a string or as {"content": string}.
func specialName(n node) (string, error) {
	if n.null() {
		return "", nil
	}
	if n.raw[0] == '{' {
		o, err := n.object()
		if err != nil {
			return "", err
		}
		return o.at("content").str()
	}
	return n.str()
}

func (c *config) parseAdded(n node) error {
	if n.null() {
		return nil
	}
	o, err := n.object()
	if err != nil {
		return err
	}
	if len(o.fields) > maxAddedTokens {
		return invalid(n.path, "has %d entries, at most %d are taken", len(o.fields), maxAddedTokens)
	}
	for key := range o.fields {
		id, err := (node{join(o.path, key), []byte(key)}).id()
		if err != nil {
			return err
		}
		to, err := o.at(key).object()
		if err != nil {
			return err
		}
		t, err := parseAddedToken(to)
		if err != nil {
			return err
		}
		t.id = id
		c.added = append(c.added, t)
	}
	return nil
}

// fill takes from d what c does not say.
func (c *config) fill(d config) {
	c.bos, c.eos = cmp.Or(c.bos, d.bos), cmp.Or(c.eos, d.eos)
}
