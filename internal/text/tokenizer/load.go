package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

const (
	tokenizerFile = "tokenizer.json"
	configFile    = "tokenizer_config.json"
	specialsFile  = "special_tokens_map.json"
	addedFile     = "added_tokens.json"
)

// Files has the contents of a tokenizer's files. Only Tokenizer is required.
type Files struct {
	Tokenizer []byte // tokenizer.json
	Config    []byte // tokenizer_config.json
	Specials  []byte // special_tokens_map.json
	Added     []byte // added_tokens.json

	extra *vocabfile.Extra // nil: the files of a folder
}

// Load reads the tokenizer of a model. path is a Hugging Face folder (tokenizer.json or one of
// vocabularyFiles, and optionally tokenizer_config.json, special_tokens_map.json and added_tokens.json), a GGUF
// file, or a folder with a single GGUF file. Errors wrap ErrInvalid or ErrUnsupported and name the file and the member.
func Load(path string) (*Tokenizer, error) {
	file, ok, err := ggufFile(path)
	if err != nil {
		return nil, err
	}
	if ok {
		files, err := readGGUF(file)
		if err != nil {
			return nil, err
		}
		t, err := Parse(files)
		if err != nil {
			return nil, fmt.Errorf("%w (in %s)", err, file)
		}
		return t, nil
	}
	f, err := readFolder(path)
	if err != nil {
		return nil, err
	}
	t, err := Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return t, nil
}

// ReadFiles reads the files that Load parses. Vocabularies of other forms are converted to these
// files, without the settings that have no place in them (vocabfile.Extra).
func ReadFiles(path string) (Files, error) {
	file, ok, err := ggufFile(path)
	if err != nil {
		return Files{}, err
	}
	if ok {
		return readGGUF(file)
	}
	return readFolder(path)
}

func readFile(path string) ([]byte, error) {
	data, err := modelfile.Read(path, maxFileBytes)
	if errors.Is(err, modelfile.ErrTooLarge) || errors.Is(err, modelfile.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return modelfile.JSON(data), err
}

// Parse is Load for files in memory.
func Parse(f Files) (*Tokenizer, error) {
	return attempt.At(func() *Tokenizer {
		c := parseConfig(f.Config, f.Specials, f.Added)
		if f.extra != nil {
			c.bos, c.eos = cmp.Or(c.bos, f.extra.BOS), cmp.Or(c.eos, f.extra.EOS)
		}
		o := parseFile(tokenizerFile, f.Tokenizer)
		if v := o.text("version", "1.0"); v != "1.0" {
			panic(attempt.Failure{Err: unsupported(join(o.path, "version"), "version", v, []string{"1.0"})})
		}
		t := &Tokenizer{config: c, normalizer: parseNormalizers(o.at("normalizer")), pre: parsePretokenizers(o.at("pre_tokenizer")),
			post: parsePostProcessor(o.at("post_processor")), decoder: parseDecoder(o.at("decoder"))}
		t.parseModel(o.at("model"), f.extra)
		t.parseAdded(o.at("added_tokens"))
		if f.extra != nil {
			t.takeExtra(f.extra)
		}
		t.finish()
		return t
	})
}

var knownModels = []string{"BPE", "Unigram", "WordPiece"}

func (t *Tokenizer) parseModel(n node, extra *vocabfile.Extra) {
	o := n.object()
	switch kind := o.text("type", "BPE"); kind {
	case "BPE":
		m := parseBPE(o)
		t.model, t.vocab = m, m.vocabulary
	case "Unigram":
		m := parseUnigram(o, extra)
		t.model, t.vocab = m, m.vocabulary
	case "WordPiece":
		m := parseWordPiece(o)
		t.model, t.vocab = m, m.vocabulary
	default:
		panic(attempt.Failure{Err: unsupported(join(o.path, "type"), "model", kind, knownModels)})
	}
}

func (t *Tokenizer) parseAdded(n node) {
	t.added = &addedVocab{byID: map[int32]*addedToken{}, byContent: map[string]*addedToken{}}
	if !n.null() {
		list := n.list()
		for _, n := range list {
			o := n.object()
			a := parseAddedToken(o)
			a.id = o.at("id").id()
			t.added.add(n.path, a, t.vocab)
		}
	}
	// transformers adds the tokens that only tokenizer_config.json lists.
	for _, a := range t.config.added {
		if t.added.byContent[a.content] != nil {
			continue
		}
		t.added.add(configFile+": added_tokens_decoder", a, t.vocab)
	}
	// In old folders, added_tokens.json lists them.
	for _, a := range t.config.addedFile {
		if t.added.byContent[a.content] != nil {
			continue
		}
		if text := t.added.conflict(a, t.vocab); text != "" {
			t.warnings = append(t.warnings, fmt.Sprintf("%s %s: the entry is ignored", addedFile, text))
			continue
		}
		t.added.add(addedFile, a, t.vocab)
	}
	t.added.index(n.path, t.normalizer)
}

// finish connects the parts and checks them against each other.
func (t *Tokenizer) finish() {
	t.size = len(t.vocab.tokens)
	for id := range t.added.byID {
		t.size = max(t.size, int(id)+1)
	}
	t.vocab.special = make([]bool, t.size)
	for id, a := range t.added.byID {
		t.vocab.special[id] = a.special
	}
	t.useBytes()
	t.applyConfig()
	for _, s := range slices.Concat(t.post.single, t.post.pair) {
		for _, id := range s.ids {
			if _, ok := t.vocab.token(id); !ok && t.added.byID[id] == nil {
				panic(attempt.Failure{Err: invalid(tokenizerFile+": post_processor", "adds the id %d, but no token has it", id)})
			}
		}
	}
}

// useBytes skips the byte alphabet if no component between pre-tokenizer and model needs it: it
// would double the length of every word.
func (t *Tokenizer) useBytes() {
	last := len(t.pre) - 1
	m, ok := t.model.(*bpe)
	if last < 0 || !ok || !m.takesBytes() {
		return
	}
	l, ok := t.pre[last].(byteLevel)
	if !ok {
		return
	}
	for _, p := range t.pre[:last] {
		if _, again := p.(byteLevel); again {
			return
		}
	}
	l.spell = false
	t.pre[last], t.raw = l, true
}

// applyConfig applies add_bos_token and add_eos_token of tokenizer_config.json. add_bos_token true
// always counts. add_eos_token, false values and defaults count only for the transformers classes
// that rebuild the template. Converted files have no template, so every true value counts.
func (t *Tokenizer) applyConfig() {
	c := t.config
	for _, f := range []struct {
		field, token string
		want         *bool
		def          bool
		apply        func(int32, bool) postProcessor
	}{
		{"add_bos_token", c.bos, c.addBOS, true, func(id int32, w bool) postProcessor { return t.post.withBOS(id, w) }},
		{"add_eos_token", c.eos, c.addEOS, false, func(id int32, w bool) postProcessor { return t.post.withEOS(id, w) }},
	} {
		want := f.def
		switch {
		case f.want != nil:
			want = *f.want
		case !c.llamaLike():
			continue
		}
		if f.field == "add_eos_token" && !c.llamaLike() && !t.converted {
			continue
		}
		if !want && !c.llamaLike() {
			continue
		}
		id, ok := t.named(f.token)
		if !ok {
			if want && f.want != nil && f.token != "" {
				panic(attempt.Failure{Err: invalid(configFile+": "+f.field, "is true, but %q is not in the vocabulary", f.token)})
			}
			continue
		}
		t.post = f.apply(id, want)
	}
}
