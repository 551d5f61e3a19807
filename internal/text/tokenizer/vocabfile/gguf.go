package vocabfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/sentencepiece"
)

// GGUF files have their tokenizer in metadata. It is converted to the equivalent tokenizer.json and
// tokenizer_config.json, so that there is one parser with one set of limits.

// GGUFPrefix starts the metadata keys of a tokenizer.
const GGUFPrefix = "tokenizer.ggml."

// Token types of SentencePiece and GGUF (sentencepiece_model.proto; llama.h, llama_token_type).
const (
	Normal      = 1
	Unknown     = 2
	Control     = 3
	UserDefined = 4
	Unused      = 5
	Byte        = 6
)

// ggufPretokenizers has the split patterns for the names in tokenizer.ggml.pre, with their
// settings: whether whole words are looked up before merges, whether BOS is added by default, and
// the normalizer of the family's tokenizer.json (which llama.cpp omits).
var ggufPretokenizers = map[string]struct {
	patterns     []string
	ignoreMerges bool
	bos          bool
	normalizer   string
}{
	"gpt-2":     {patterns: []string{GPT2Pattern}},
	"llama-bpe": {patterns: []string{Llama3Pattern}, ignoreMerges: true, bos: true},
	"llama3":    {patterns: []string{Llama3Pattern}, ignoreMerges: true, bos: true},
	"llama-v3":  {patterns: []string{Llama3Pattern}, ignoreMerges: true, bos: true},
	"qwen2":     {patterns: []string{Qwen2Pattern}, normalizer: "NFC"},
	"qwen35":    {patterns: []string{Qwen35Pattern}, normalizer: "NFC"},
	"smollm":    {patterns: []string{digitPattern, GPT2Pattern}},

	"gpt-4o": {patterns: []string{o200kPattern}}, // gpt-oss
	"llama4": {patterns: []string{o200kPattern}, bos: true},
	"tekken": {patterns: []string{tekkenPattern}, ignoreMerges: true, bos: true},

	"deepseek-llm": {patterns: []string{deepseekLinePattern, deepseekWordPattern, deepseekSignPattern,
		deepseekTailPattern, deepseekWidePattern, digitPattern}},
	"deepseek-coder":   {patterns: []string{deepseekLinePattern, coderWordPattern, coderSignPattern, deepseekWidePattern, digitPattern}},
	"deepseek-v3":      {patterns: []string{NumbersPattern, CJKPattern, DeepSeekPattern}},
	"deepseek-r1-qwen": {patterns: []string{Qwen2Pattern}},
}

func ggufPre() []string {
	return slices.Sorted(maps.Keys(ggufPretokenizers))
}

// Document is a vocabulary as the files of a Hugging Face folder.
type Document struct {
	Tokenizer []byte // tokenizer.json
	Config    []byte // tokenizer_config.json
	Extra     Extra
}

// Extra has the parts of a vocabulary that the files of a folder cannot express.
type Extra struct {
	Scores   []float32     // by id: the order of merges, highest first; nil: the file has merges
	Types    []uint8       // types of SentencePiece by id, nil: not a SentencePiece model
	Again    map[int32]int // ids with the text of an earlier token -> first id of that text
	BOS, EOS string        // special tokens that tokenizer_config.json may replace
}

// GGUF converts the tokenizer of a GGUF file.
func GGUF(path string) (d Document, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return d, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fault := mmap.Guard(func() {
		_, err = attempt.At(func() any { d = documentGGUF(f); return nil })
	})
	if err = errors.Join(err, fault); err != nil {
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrInvalid) {
			err = fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		err = fmt.Errorf("%w (in %s)", err, path)
	}
	return d, err
}

func documentGGUF(f *gguf.File) (d Document) {
	v := vocabGGUF(f)
	kind := attempt.Must(f.Text(GGUFPrefix+"model", ""))
	v.lstrip, v.rstrip = stripGGUF(f, kind)
	var doc map[string]any
	bos, eos := true, false
	d.Extra.Again = v.again
	switch kind {
	case "gpt2":
		doc, bos = v.byteLevel(f)
	case "llama":
		if v.normalizes(f) {
			doc = v.sentencePieceFile(f, sentencepiece.BPE, &d.Extra)
			break
		}
		doc, d.Extra.Scores = v.sentencePiece(f)
	case "gemma4":
		doc = v.gemma4(f)
	case "bert":
		doc = v.bert(f)
	case "t5":
		doc, eos = v.sentencePieceFile(f, sentencepiece.Unigram, &d.Extra), true
		bos = false
	default:
		panic(attempt.Failure{Err: Unsupported(GGUFPrefix+"model", "tokenizer", kind, []string{"bert", "gemma4", "gpt2", "llama", "t5"})})
	}
	if doc["added_tokens"] == nil {
		doc["added_tokens"] = v.added()
	}
	d.Tokenizer = attempt.Must(json.Marshal(doc))
	d.Config = attempt.Must(json.Marshal(v.config(f, bos, eos)))
	return d
}

// ggufVocab is the vocabulary by id.
type ggufVocab struct {
	tokens []string
	kinds  []int64 // nil: all normal

	first map[string]int // id of each text
	again map[int32]int  // see Extra

	lstrip, rstrip func(token string) bool // added tokens that swallow white space, see stripGGUF
}

// stripGGUF returns which added tokens swallow the white space before and after them. Files have no flag for
// it. llama.cpp decides by the names of the model, of the architecture and of the pre-tokenizer. Here every
// Phi-3 with a SentencePiece vocabulary counts: new converters write "Phi 3" without the hyphen.
func stripGGUF(f *gguf.File, kind string) (left, right func(token string) bool) {
	text := func(key string) string { return strings.ToLower(attempt.Must(f.Text(key, ""))) }
	name, arch, pre := text("general.name"), text("general.architecture"), text(GGUFPrefix+"pre")
	never := func(string) bool { return false }
	only := func(mask string) func(string) bool { return func(s string) bool { return s == mask } }
	switch {
	case strings.HasPrefix(pre, "jina-v2-"), arch == "nomic-bert-moe", arch == "jina-bert-v3":
		return only("<mask>"), never
	case strings.Contains(name, "phi-3"), strings.Contains(name, "phi3"), arch == "phi3" && kind == "llama":
		return never, func(s string) bool { return !slices.Contains([]string{"<unk>", "<s>", "<|endoftext|>"}, s) }
	case arch == "modern-bert", strings.Contains(name, "modern-bert"):
		return only("[MASK]"), never
	}
	return never, never
}

func vocabGGUF(f *gguf.File) *ggufVocab {
	v := &ggufVocab{first: map[string]int{}, again: map[int32]int{}}
	v.tokens = attempt.Must(f.Texts(GGUFPrefix + "tokens"))
	v.kinds = attempt.Must(f.Ints(GGUFPrefix + "token_type"))
	switch n := len(v.tokens); {
	case n == 0:
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+"tokens",
			"is missing or empty: the file has no tokenizer; put it in a folder with its tokenizer.json")})
	case n > MaxTokenID:
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+"tokens", "has %d entries, the limit is %d", n, MaxTokenID)})
	case v.kinds != nil && len(v.kinds) != n:
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+"token_type", "has %d entries for %d tokens", len(v.kinds), n)})
	}
	for id, s := range v.tokens {
		if !utf8.ValidString(s) {
			panic(attempt.Failure{Err: Invalid(GGUFPrefix+"tokens", "token %d is not valid UTF-8", id)})
		}
		if old, ok := v.first[s]; ok {
			v.again[int32(id)] = old
			continue
		}
		v.first[s] = id
	}
	return v
}

func (v *ggufVocab) kind(id int) int64 {
	if v.kinds == nil {
		return Normal
	}
	return v.kinds[id]
}

// added returns the tokens that are recognised in a text before it is split.
func (v *ggufVocab) added() []map[string]any {
	out := []map[string]any{}
	for id, s := range v.tokens {
		if _, again := v.again[int32(id)]; again {
			continue
		}
		if k := v.kind(id); k == Unknown || k == Control || k == UserDefined {
			out = append(out, map[string]any{"id": id, "content": s, "special": k != UserDefined, "normalized": false,
				"lstrip": v.lstrip(s), "rstrip": v.rstrip(s)})
		}
	}
	return out
}

// byteLevel converts GPT-2's kind of tokenizer: merges over the byte alphabet.
func (v *ggufVocab) byteLevel(f *gguf.File) (doc map[string]any, bos bool) {
	name := attempt.Must(f.Text(GGUFPrefix+"pre", "default"))
	pre, ok := ggufPretokenizers[name]
	if !ok {
		panic(attempt.Failure{Err: fmt.Errorf("%w (or put the file in a folder with the model's tokenizer.json)",
			Unsupported(GGUFPrefix+"pre", "pre-tokenizer", name, ggufPre()))})
	}
	merges := attempt.Must(f.Texts(GGUFPrefix + "merges"))
	if merges == nil {
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+"merges", "is missing")})
	}
	var stages []any
	for _, p := range pre.patterns {
		stages = append(stages, map[string]any{"type": "Split", "pattern": map[string]any{"Regex": p}, "behavior": "Isolated"})
	}
	stages = append(stages, map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})
	doc = map[string]any{
		"model":         map[string]any{"type": "BPE", "vocab": v.first, "merges": merges, "ignore_merges": pre.ignoreMerges},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": stages},
		"decoder":       map[string]any{"type": "ByteLevel"},
	}
	if pre.normalizer != "" {
		doc["normalizer"] = map[string]any{"type": pre.normalizer}
	}
	return doc, pre.bos
}

// sentencePiece converts Llama's original kind: characters, with spaces as U+2581, merged by the
// score of the result, and bytes for characters missing in the vocabulary.
func (v *ggufVocab) sentencePiece(f *gguf.File) (doc map[string]any, scores []float32) {
	scores = v.scores(f)
	return v.characters(f, []string{}, attempt.Must(f.Bool(GGUFPrefix+"add_space_prefix", true))), scores
}

// gemma4 converts Gemma 4's kind: the same characters, merged by a list of merges. llama.cpp splits
// a text at runs of line breaks first; no merge crosses them.
func (v *ggufVocab) gemma4(f *gguf.File) map[string]any {
	merges := attempt.Must(f.Texts(GGUFPrefix + "merges"))
	if merges == nil {
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+"merges", "is missing")})
	}
	doc := v.characters(f, merges, attempt.Must(f.Bool(GGUFPrefix+"add_space_prefix", false)))
	doc["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "\n+"}, "behavior": "Isolated"}
	return doc
}

// characters returns a tokenizer whose first symbols are characters, with spaces as U+2581, and bytes for
// those that are missing. prefix: a space goes before each text.
func (v *ggufVocab) characters(f *gguf.File, merges []string, prefix bool) map[string]any {
	const mark = "\u2581"
	model := map[string]any{"type": "BPE", "vocab": v.first, "merges": merges, "byte_fallback": true, "fuse_unk": true}
	if id := v.named(f, "unknown_token_id", 0); id != "" {
		model["unk_token"] = id
	}
	normalizers := []any{map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": mark}}
	decoders := []any{map[string]any{"type": "Replace", "pattern": map[string]any{"String": mark}, "content": " "},
		map[string]any{"type": "ByteFallback"}, map[string]any{"type": "Fuse"}}
	if prefix {
		normalizers = append([]any{map[string]any{"type": "Prepend", "prepend": mark}}, normalizers...)
		decoders = append(decoders, map[string]any{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return map[string]any{"model": model, "normalizer": map[string]any{"type": "Sequence", "normalizers": normalizers},
		"decoder": map[string]any{"type": "Sequence", "decoders": decoders}}
}

// named returns the token whose id a key has, or "" if there is none.
func (v *ggufVocab) named(f *gguf.File, key string, def int64) string {
	if id := v.idOr(f, key, def); id >= 0 {
		return v.tokens[id]
	}
	return ""
}

// id returns the token id that a key has, or -1 if there is none.
func (v *ggufVocab) id(f *gguf.File, key string) int { return v.idOr(f, key, -1) }

func (v *ggufVocab) idOr(f *gguf.File, key string, def int64) int {
	const none = 1<<32 - 1 // -1, as converters wrote it
	id := attempt.Must(f.Int(GGUFPrefix+key, def, -1, none))
	switch {
	case id == none:
		return -1
	case id >= int64(len(v.tokens)):
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+key, "is %d, there are %d tokens", id, len(v.tokens))})
	}
	return int(id)
}

// config returns the tokenizer_config.json. bos and eos are the defaults of add_bos_token and
// add_eos_token.
func (v *ggufVocab) config(f *gguf.File, bos, eos bool) map[string]any {
	out := map[string]any{"tokenizer_class": "PreTrainedTokenizerFast"}
	for field, key := range map[string]string{"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id",
		"unk_token": "unknown_token_id"} {
		if s := v.named(f, key, -1); s != "" {
			out[field] = s
		}
	}
	if out["bos_token"] == nil {
		bos = false
	}
	if out["eos_token"] == nil {
		eos = false
	}
	for key, def := range map[string]bool{"add_bos_token": bos, "add_eos_token": eos} {
		out[key] = attempt.Must(f.Bool(GGUFPrefix+key, def))
	}
	const template = "tokenizer.chat_template"
	main := attempt.Must(f.Text(template, ""))
	named := []map[string]string{}
	for _, key := range f.Keys() {
		name, ok := strings.CutPrefix(key, template+".")
		if !ok {
			continue
		}
		named = append(named, map[string]string{"name": name, "template": attempt.Must(f.Text(key, ""))})
	}
	switch {
	case len(named) > 0:
		if main != "" {
			named = append(named, map[string]string{"name": "default", "template": main})
		}
		out["chat_template"] = named
	case main != "":
		out["chat_template"] = main
	}
	return out
}
