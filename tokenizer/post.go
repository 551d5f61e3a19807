package tokenizer

// postProcessor is what a file puts around a single text: ids before and after it.
type postProcessor struct{ before, after []int32 }

var knownPostProcessors = []string{"Sequence", "TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing"}

func parsePostProcessor(n node) (postProcessor, error) {
	var out postProcessor
	list, err := flatten(n, "processors")
	if err != nil {
		return out, err
	}
	adding := 0
	for _, o := range list {
		kind, err := o.kind()
		if err != nil {
			return out, err
		}
		switch kind {
		case "ByteLevel": // only moves offsets, which are not kept here
			continue
		case "TemplateProcessing":
			out, err = parseTemplate(o)
		case "BertProcessing", "RobertaProcessing":
			out, err = parseClsSep(o)
		default:
			return out, unsupported(join(o.path, "type"), "post-processor", kind, knownPostProcessors)
		}
		if err != nil {
			return out, err
		}
		if adding++; adding > 1 {
			return out, invalid(o.path, "is the second post-processor that adds tokens")
		}
	}
	return out, nil
}

// parseTemplate reads the "single" template: special tokens around one sequence A.
func parseTemplate(o object) (postProcessor, error) {
	var out postProcessor
	special, err := o.at("special_tokens").object()
	if err != nil {
		return out, err
	}
	list, err := o.at("single").list()
	if err != nil {
		return out, err
	}
	if len(list) > maxStages {
		return out, invalid(join(o.path, "single"), "has %d pieces, at most %d are taken", len(list), maxStages)
	}
	seen := false
	for _, n := range list {
		p, err := n.object()
		if err != nil {
			return out, err
		}
		if seq := p.at("Sequence"); !seq.null() {
			so, err := seq.object()
			if err != nil {
				return out, err
			}
			name, err := so.at("id").str()
			if err != nil {
				return out, err
			}
			if name != "A" || seen {
				return out, invalid(seq.path, "a template for one text holds sequence A exactly once, not %q here", name)
			}
			seen = true
			continue
		}
		so, err := p.at("SpecialToken").object()
		if err != nil {
			return out, err
		}
		name, err := so.at("id").str()
		if err != nil {
			return out, err
		}
		def := special.at(name)
		if def.null() {
			return out, invalid(so.path, "names %q, which special_tokens does not define", name)
		}
		ids, err := parseTemplateIDs(def)
		if err != nil {
			return out, err
		}
		if seen {
			out.after = append(out.after, ids...)
		} else {
			out.before = append(out.before, ids...)
		}
	}
	if !seen {
		return out, invalid(join(o.path, "single"), "has no place for the text (sequence A)")
	}
	return out, nil
}

func parseTemplateIDs(n node) ([]int32, error) {
	o, err := n.object()
	if err != nil {
		return nil, err
	}
	list, err := o.at("ids").list()
	if err != nil {
		return nil, err
	}
	if len(list) > maxStages {
		return nil, invalid(join(o.path, "ids"), "has %d entries, at most %d are taken", len(list), maxStages)
	}
	var out []int32
	for _, n := range list {
		id, err := n.id()
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// parseClsSep: BERT and RoBERTa put cls before and sep after.
func parseClsSep(o object) (postProcessor, error) {
	var ids [2]int32
	for i, name := range []string{"cls", "sep"} {
		pair, err := o.at(name).list()
		if err != nil {
			return postProcessor{}, err
		}
		if len(pair) != 2 {
			return postProcessor{}, invalid(join(o.path, name), "has %d parts, want [token, id]", len(pair))
		}
		if ids[i], err = pair[1].id(); err != nil {
			return postProcessor{}, err
		}
	}
	return postProcessor{ids[:1:1], ids[1:]}, nil
}

// withBOS and withEOS apply add_bos_token and add_eos_token of tokenizer_config.json.
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
