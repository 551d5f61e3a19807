package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// GGUF files have their tokenizer in metadata. It is converted to the equivalent tokenizer.json and
// tokenizer_config.json, so that there is one parser with one set of limits.

const ggufPrefix = "tokenizer.ggml."

// Token types in GGUF (llama.h, llama_token_type).
const (
	ggufNormal  = 1
	ggufUnknown = 2
	ggufControl = 3
	ggufUser    = 4
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
	"gpt-2":     {patterns: []string{gpt2Pattern}},
	"llama-bpe": {patterns: []string{llama3Pattern}, ignoreMerges: true, bos: true},
	"llama3":    {patterns: []string{llama3Pattern}, ignoreMerges: true, bos: true},
	"llama-v3":  {patterns: []string{llama3Pattern}, ignoreMerges: true, bos: true},
	"qwen2":     {patterns: []string{qwen2Pattern}, normalizer: "NFC"},
	"qwen35":    {patterns: []string{qwen35Pattern}, normalizer: "NFC"},
	"smollm":    {patterns: []string{digitPattern, gpt2Pattern}},

	"gpt-4o": {patterns: []string{o200kPattern}}, // gpt-oss
	"llama4": {patterns: []string{o200kPattern}, bos: true},
	"tekken": {patterns: []string{tekkenPattern}, ignoreMerges: true, bos: true},

	"deepseek-llm":     {patterns: []string{deepseekLinePattern, deepseekWordPattern, deepseekSignPattern, deepseekTailPattern, deepseekWidePattern, digitPattern}},
	"deepseek-coder":   {patterns: []string{deepseekLinePattern, coderWordPattern, coderSignPattern, deepseekWidePattern, digitPattern}},
	"deepseek-v3":      {patterns: []string{numbersPattern, cjkPattern, deepseekPattern}},
	"deepseek-r1-qwen": {patterns: []string{qwen2Pattern}},
}

func ggufPre() []string {
	return slices.Sorted(maps.Keys(ggufPretokenizers))
}

// ggufFile returns the GGUF file with the tokenizer of path: the file itself, or the only one in a
// folder that has no tokenizer files.
func ggufFile(path string) (file string, ok bool, err error) {
	for _, own := range []string{tokenizerFile, "config.json"} {
		if _, err := os.Stat(filepath.Join(path, own)); err == nil {
			return "", false, nil
		}
	}
	file, err = gguf.Find(path)
	if errors.Is(err, gguf.ErrNotThere) {
		return "", false, nil // the caller reports what else is missing
	} else if err != nil {
		return "", false, fmt.Errorf("tokenizer: %w", err)
	}
	return file, true, nil
}

// ggufOnly has the parts of a GGUF tokenizer that the files of a folder cannot express.
type ggufOnly struct {
	scores []float32     // SentencePiece scores by id, else nil
	again  map[int32]int // ids with the text of an earlier token -> first id of that text
}

// readGGUF converts the tokenizer of a GGUF file.
func readGGUF(path string) (files Files, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return files, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fault := mmap.Guard(func() {
		_, err = attempt.At(func() any { files = filesGGUF(f); return nil })
	})
	if err = errors.Join(err, fault); err != nil {
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrInvalid) {
			err = fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		err = fmt.Errorf("%w (in %s)", err, path)
	}
	return files, err
}

// takeGGUF adds the parts that the files of a folder cannot express. If several ids have the same
// text, encoding uses the first; the others are only decoded.
func (t *Tokenizer) takeGGUF(g *ggufOnly) {
	t.gguf = true
	for _, id := range slices.Sorted(maps.Keys(g.again)) {
		first := int32(g.again[id])
		s := t.Token(first)
		t.warnings = append(t.warnings, fmt.Sprintf("%stokens: the ids %d and %d both have the text %q; texts get the id %d", ggufPrefix, first, id, s, first))
		if a := t.added.byID[first]; a != nil {
			twin := *a
			twin.id = id
			t.added.byID[id] = &twin
			continue
		}
		t.model.alias(id, s)
	}
	if g.scores != nil {
		t.model.useScores(g.scores, func(id int) bool {
			_, again := g.again[int32(id)]
			return !again && t.added.byID[int32(id)] == nil
		})
	}
}

func filesGGUF(f *gguf.File) (files Files) {
	v := vocabGGUF(f)
	kind := attempt.Must(f.Text(ggufPrefix+"model", ""))
	var doc map[string]any
	bos := true
	files.gguf = &ggufOnly{again: v.again}
	switch kind {
	case "gpt2":
		doc, bos = v.byteLevel(f)
	case "llama":
		doc, files.gguf.scores = v.sentencePiece(f)
	case "gemma4":
		doc = v.gemma4(f)
	default:
		panic(attempt.Failure{Err: unsupported(ggufPrefix+"model", "tokenizer", kind, []string{"gemma4", "gpt2", "llama"})})
	}
	doc["added_tokens"] = v.added()
	files.Tokenizer = attempt.Must(json.Marshal(doc))
	files.Config = attempt.Must(json.Marshal(v.config(f, bos)))
	return files
}

// ggufVocab is the vocabulary by id.
type ggufVocab struct {
	tokens []string
	kinds  []int64 // nil: all normal

	first map[string]int // id of each text
	again map[int32]int  // see ggufOnly
}

func vocabGGUF(f *gguf.File) *ggufVocab {
	v := &ggufVocab{first: map[string]int{}, again: map[int32]int{}}
	v.tokens = attempt.Must(f.Texts(ggufPrefix + "tokens"))
	v.kinds = attempt.Must(f.Wholes(ggufPrefix + "token_type"))
	switch n := len(v.tokens); {
	case n == 0:
		panic(attempt.Failure{Err: invalid(ggufPrefix+"tokens", "is missing or empty: the file has no tokenizer; put it in a folder with its tokenizer.json")})
	case n > maxTokenID:
		panic(attempt.Failure{Err: invalid(ggufPrefix+"tokens", "has %d entries, the limit is %d", n, maxTokenID)})
	case v.kinds != nil && len(v.kinds) != n:
		panic(attempt.Failure{Err: invalid(ggufPrefix+"token_type", "has %d entries for %d tokens", len(v.kinds), n)})
	}
	for id, s := range v.tokens {
		if !utf8.ValidString(s) {
			panic(attempt.Failure{Err: invalid(ggufPrefix+"tokens", "token %d is not valid UTF-8", id)})
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
		return ggufNormal
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
		if k := v.kind(id); k == ggufUnknown || k == ggufControl || k == ggufUser {
			out = append(out, map[string]any{"id": id, "content": s, "special": k != ggufUser, "normalized": false})
		}
	}
	return out
}

// byteLevel converts GPT-2's kind of tokenizer: merges over the byte alphabet.
func (v *ggufVocab) byteLevel(f *gguf.File) (doc map[string]any, bos bool) {
	name := attempt.Must(f.Text(ggufPrefix+"pre", "default"))
	pre, ok := ggufPretokenizers[name]
	if !ok {
		panic(attempt.Failure{Err: fmt.Errorf("%w (or put the file in a folder with the model's tokenizer.json)", unsupported(ggufPrefix+"pre", "pre-tokenizer", name, ggufPre()))})
	}
	merges := attempt.Must(f.Texts(ggufPrefix + "merges"))
	if merges == nil {
		panic(attempt.Failure{Err: invalid(ggufPrefix+"merges", "is missing")})
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
	scores = attempt.Must(f.Float32s(ggufPrefix + "scores"))
	if len(scores) != len(v.tokens) {
		panic(attempt.Failure{Err: invalid(ggufPrefix+"scores", "has %d entries for %d tokens", len(scores), len(v.tokens))})
	}
	for id, score := range scores {
		if score != score {
			panic(attempt.Failure{Err: invalid(ggufPrefix+"scores", "token %d has a NaN: the order of merges is undefined", id)})
		}
	}
	if _, ok := f.Value(ggufPrefix + "precompiled_charsmap"); ok {
		panic(attempt.Failure{Err: fmt.Errorf("%w: %sprecompiled_charsmap: SentencePiece's normalization is not supported", ErrUnsupported, ggufPrefix)})
	}
	if attempt.Must(f.Flag(ggufPrefix+"remove_extra_whitespaces", false)) {
		panic(attempt.Failure{Err: fmt.Errorf("%w: %sremove_extra_whitespaces is set", ErrUnsupported, ggufPrefix)})
	}
	return v.characters(f, []string{}, attempt.Must(f.Flag(ggufPrefix+"add_space_prefix", true))), scores
}

// gemma4 converts Gemma 4's kind: the same characters, merged by a list of merges. llama.cpp splits
// a text at runs of line breaks first; no merge crosses them.
func (v *ggufVocab) gemma4(f *gguf.File) map[string]any {
	merges := attempt.Must(f.Texts(ggufPrefix + "merges"))
	if merges == nil {
		panic(attempt.Failure{Err: invalid(ggufPrefix+"merges", "is missing")})
	}
	doc := v.characters(f, merges, attempt.Must(f.Flag(ggufPrefix+"add_space_prefix", false)))
	doc["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "\n+"}, "behavior": "Isolated"}
	return doc
}

// characters is a tokenizer whose first symbols are characters, with spaces as U+2581, and bytes for
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

// named returns the token whose id a key has. def is the default id; -1 means none.
func (v *ggufVocab) named(f *gguf.File, key string, def int64) string {
	const none = 1<<32 - 1 // -1, as converters wrote it
	id := attempt.Must(f.Whole(ggufPrefix+key, def, -1, none))
	switch {
	case id == none || id == -1:
		return ""
	case id >= int64(len(v.tokens)):
		panic(attempt.Failure{Err: invalid(ggufPrefix+key, "is %d, there are %d tokens", id, len(v.tokens))})
	}
	return v.tokens[id]
}

// config returns the tokenizer_config.json.
func (v *ggufVocab) config(f *gguf.File, bos bool) map[string]any {
	out := map[string]any{"tokenizer_class": "PreTrainedTokenizerFast"}
	for field, key := range map[string]string{"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id", "unk_token": "unknown_token_id"} {
		if s := v.named(f, key, -1); s != "" {
			out[field] = s
		}
	}
	if out["bos_token"] == nil {
		bos = false
	}
	for key, def := range map[string]bool{"add_bos_token": bos, "add_eos_token": false} {
		out[key] = attempt.Must(f.Flag(ggufPrefix+key, def))
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
			named = append(named, map[string]string{"name": chatDefault, "template": main})
		}
		out["chat_template"] = named
	case main != "":
		out["chat_template"] = main
	}
	return out
}
