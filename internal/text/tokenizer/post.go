package tokenizer

import "github.com/shoal-llm/shoal/internal/attempt"

// postProcessor has the ids that a file adds before and after a single text.
type postProcessor struct{ before, after []int32 }

var knownPostProcessors = []string{"Sequence", "TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"}

func parsePostProcessor(n node) postProcessor {
	var out postProcessor
	adding := 0
	for _, o := range flatten(n, "processors") {
		kind := o.kind()
		switch kind {
		case "ByteLevel": // it only changes offsets, which are not tracked
			continue
		case "TemplateProcessing":
			out = parseTemplate(o)
		case "BertProcessing", "RobertaProcessing":
			out = parseClsSep(o)
		default:
			panic(attempt.Failure{Err: unsupported(join(o.path, "type"), "post-processor", kind, knownPostProcessors)})
		}
		if adding++; adding > 1 {
			panic(attempt.Failure{Err: invalid(o.path, "is the second post-processor that adds tokens")})
		}
	}
	return out
}

// parseTemplate parses the "single" template: special tokens around one sequence A.
func parseTemplate(o object) postProcessor {
	var out postProcessor
	special := o.at("special_tokens").object()
	list := o.at("single").list()
	if len(list) > maxStages {
		panic(attempt.Failure{Err: invalid(join(o.path, "single"), "has %d pieces, the limit is %d", len(list), maxStages)})
	}
	seen := false
	for _, n := range list {
		p := n.object()
		if seq := p.at("Sequence"); !seq.null() {
			so := seq.object()
			name := so.at("id").str()
			if name != "A" || seen {
				panic(attempt.Failure{Err: invalid(seq.path, "a template for one text holds sequence A exactly once, not %q here", name)})
			}
			seen = true
			continue
		}
		so := p.at("SpecialToken").object()
		name := so.at("id").str()
		def := special.at(name)
		if def.null() {
			panic(attempt.Failure{Err: invalid(so.path, "names %q, which special_tokens does not define", name)})
		}
		ids := parseTemplateIDs(def)
		if seen {
			out.after = append(out.after, ids...)
		} else {
			out.before = append(out.before, ids...)
		}
	}
	if !seen {
		panic(attempt.Failure{Err: invalid(join(o.path, "single"), "has no place for the text (sequence A)")})
	}
	return out
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

// parseClsSep parses BERT's and RoBERTa's, which put cls before and sep after.
func parseClsSep(o object) postProcessor {
	var ids [2]int32
	for i, name := range []string{"cls", "sep"} {
		pair := o.at(name).list()
		if len(pair) != 2 {
			panic(attempt.Failure{Err: invalid(join(o.path, name), "has %d parts, want [token, id]", len(pair))})
		}
		ids[i] = pair[1].id()
	}
	return postProcessor{ids[:1:1], ids[1:]}
}

// withBOS applies add_bos_token of tokenizer_config.json; withEOS applies add_eos_token.
func (p postProcessor) withBOS(id int32, want bool) postProcessor {
	has := len(p.before) > 0 && p.before[0] == id
	switch {
	case want && !has:
		p.before = append([]int32{id}, p.before...)
	case !want && has:
		p.before = p.before[1:]
	}
	return p
}

func (p postProcessor) withEOS(id int32, want bool) postProcessor {
	n := len(p.after)
	has := n > 0 && p.after[n-1] == id
	switch {
	case want && !has:
		p.after = append(p.after[:n:n], id)
	case !want && has:
		p.after = p.after[:n-1]
	}
	return p
}
