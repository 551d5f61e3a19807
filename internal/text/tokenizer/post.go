package tokenizer

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// slot is an element of a template: ids that it adds, or the place of a text.
type slot struct {
	text int // index of the text, -1: none
	ids  []int32
	kind int32 // token type of the tokens in the slot
}

// postProcessor has the templates that a file has for one text and for two.
type postProcessor struct{ single, pair []slot }

// plainPost adds nothing.
func plainPost() postProcessor {
	return postProcessor{single: []slot{{text: 0}}, pair: []slot{{text: 0}, {text: 1, kind: 1}}}
}

// around returns the ids that the template of one text adds before and after it.
func (p postProcessor) around() (before, after []int32) {
	seen := false
	for _, s := range p.single {
		switch {
		case s.text >= 0:
			seen = true
		case seen:
			after = append(after, s.ids...)
		default:
			before = append(before, s.ids...)
		}
	}
	return before, after
}

// template returns the template for a number of texts.
func (p postProcessor) template(texts int) []slot {
	if texts == 2 {
		return p.pair
	}
	return p.single
}

var knownPostProcessors = []string{"Sequence", "TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"}

func parsePostProcessor(n node) postProcessor {
	out := plainPost()
	adding := 0
	for _, o := range flatten(n, "processors") {
		kind := o.kind()
		switch kind {
		case "ByteLevel": // it only changes offsets, which are not tracked
			continue
		case "TemplateProcessing":
			out = parseTemplates(o)
		case "BertProcessing":
			out = parseClsSep(o, 1, 1)
		case "RobertaProcessing":
			out = parseClsSep(o, 2, 0)
		default:
			panic(attempt.Failure{Err: unsupported(join(o.path, "type"), "post-processor", kind, knownPostProcessors)})
		}
		if adding++; adding > 1 {
			panic(attempt.Failure{Err: invalid(o.path, "is the second post-processor that adds tokens")})
		}
	}
	return out
}

// parseTemplates parses the templates of one text (sequence A) and of two (A and B).
func parseTemplates(o object) postProcessor {
	special := o.at("special_tokens").object()
	p := plainPost()
	p.single = parseTemplate(o.at("single"), special, 1)
	if n := o.at("pair"); !n.null() {
		p.pair = parseTemplate(n, special, 2)
	}
	return p
}

func parseTemplate(n node, special object, texts int) []slot {
	list := n.list()
	if len(list) > maxStages {
		panic(attempt.Failure{Err: invalid(n.path, "has %d pieces, the limit is %d", len(list), maxStages)})
	}
	var out []slot
	var seen [2]bool
	for _, n := range list {
		p := n.object()
		if seq := p.at("Sequence"); !seq.null() {
			so := seq.object()
			name := so.at("id").str()
			i := slices.Index([]string{"A", "B"}[:texts], name)
			if i < 0 || seen[i] {
				panic(attempt.Failure{Err: invalid(seq.path,
					"a template for %d texts holds each sequence of A and B exactly once, not %q here", texts, name)})
			}
			seen[i] = true
			out = append(out, slot{text: i, kind: parseType(so)})
			continue
		}
		so := p.at("SpecialToken").object()
		name := so.at("id").str()
		def := special.at(name)
		if def.null() {
			panic(attempt.Failure{Err: invalid(so.path, "names %q, which special_tokens does not define", name)})
		}
		out = append(out, slot{text: -1, ids: parseTemplateIDs(def), kind: parseType(so)})
	}
	for i := range texts {
		if !seen[i] {
			panic(attempt.Failure{Err: invalid(n.path, "has no place for the text (sequence %c)", 'A'+i)})
		}
	}
	return out
}

func parseType(o object) int32 {
	if n := o.at("type_id"); !n.null() {
		return int32(n.count(1 << 16))
	}
	return 0
}

func parseTemplateIDs(n node) []int32 {
	o := n.object()
	list := o.at("ids").list()
	if len(list) > maxStages {
		panic(attempt.Failure{Err: invalid(join(o.path, "ids"), "has %d entries, the limit is %d", len(list), maxStages)})
	}
	var out []int32
	for _, n := range list {
		out = append(out, n.id())
	}
	return out
}

// parseClsSep parses the post-processors of BERT and RoBERTa, which put cls before and sep after. Between two texts
// are seps copies of sep, and the second text has the token type kind.
func parseClsSep(o object, seps int, kind int32) postProcessor {
	var ids [2][]int32
	for i, name := range []string{"cls", "sep"} {
		pair := o.at(name).list()
		if len(pair) != 2 {
			panic(attempt.Failure{Err: invalid(join(o.path, name), "has %d parts, want [token, id]", len(pair))})
		}
		ids[i] = []int32{pair[1].id()}
	}
	cls, sep := slot{text: -1, ids: ids[0]}, slot{text: -1, ids: ids[1]}
	between := slot{text: -1, ids: slices.Repeat(ids[1], seps)}
	return postProcessor{single: []slot{cls, {text: 0}, sep},
		pair: []slot{cls, {text: 0}, between, {text: 1, kind: kind}, {text: -1, ids: ids[1], kind: kind}}}
}

// withBOS applies add_bos_token of tokenizer_config.json; withEOS applies add_eos_token.
func (p postProcessor) withBOS(id int32, want bool) postProcessor {
	before, _ := p.around()
	has := len(before) > 0 && before[0] == id
	for _, t := range []*[]slot{&p.single, &p.pair} {
		switch {
		case want && !has:
			*t = slices.Insert(slices.Clone(*t), 0, slot{text: -1, ids: []int32{id}, kind: (*t)[0].kind})
		case !want && has && len((*t)[0].ids) > 0 && (*t)[0].ids[0] == id:
			*t = slices.Clone(*t)
			(*t)[0].ids = (*t)[0].ids[1:]
		}
	}
	return p
}

func (p postProcessor) withEOS(id int32, want bool) postProcessor {
	_, after := p.around()
	has := len(after) > 0 && after[len(after)-1] == id
	for _, t := range []*[]slot{&p.single, &p.pair} {
		end := len(*t) - 1
		last := (*t)[end]
		switch {
		case want && !has:
			*t = append((*t)[:end+1:end+1], slot{text: -1, ids: []int32{id}, kind: last.kind})
		case !want && has && len(last.ids) > 0 && last.ids[len(last.ids)-1] == id:
			*t = slices.Clone(*t)
			(*t)[end].ids = last.ids[:len(last.ids)-1]
		}
	}
	return p
}
