package tokenizer

import (
	"maps"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// config has the settings of tokenizer_config.json and special_tokens_map.json.
type config struct {
	bos, eos       string
	class          string
	addBOS, addEOS *bool
	added          []*addedToken // added_tokens_decoder
	addedFile      []*addedToken // added_tokens.json, without added_tokens_decoder
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

// parseConfig parses tokenizer_config.json, special_tokens_map.json and added_tokens.json. Missing files are empty.
func parseConfig(data, specials, added []byte) config {
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
	decoder := o.at("added_tokens_decoder")
	if c.parseAdded(decoder); decoder.null() {
		c.parseAddedFile(members(addedFile, added), s)
	}
	return c
}

// parseAddedFile parses added_tokens.json, an object of token: id. Tokens that the configuration names are special.
func (c *config) parseAddedFile(o object, s specialTokens) {
	if len(o.fields) > maxAddedTokens {
		panic(attempt.Failure{Err: invalid(addedFile, "has %d entries, the limit is %d", len(o.fields), maxAddedTokens)})
	}
	special := slices.Concat(slices.Collect(maps.Values(s.named)), s.extra)
	for _, content := range slices.Sorted(maps.Keys(o.fields)) {
		if len(content) > maxAddedBytes {
			panic(attempt.Failure{Err: invalid(addedFile, "has a token of %d bytes, the limit is %d", len(content), maxAddedBytes)})
		}
		t := &addedToken{content: content, id: o.at(content).id(), special: slices.Contains(special, content)}
		t.normalized = !t.special
		c.addedFile = append(c.addedFile, t)
	}
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
