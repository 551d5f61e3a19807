package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const tinyModel = `"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4}, "merges": ["a b"]}`

// TestRefuses: errors name the file, the member and the fault.
func TestRefuses(t *testing.T) {
	deep := strings.Repeat(`{"type": "Sequence", "normalizers": [`, 12) + strings.Repeat(`]}`, 12)
	many := `{"type": "Sequence", "normalizers": [` + strings.TrimSuffix(strings.Repeat(`{"type": "NFC"},`, 100), ",") + `]}`
	for _, c := range []struct {
		json string
		want error
		says []string
	}{
		{``, ErrInvalid, []string{"tokenizer.json"}},
		{"{\"model\": \"\xff\"}", ErrInvalid, []string{"UTF-8"}},
		{`[]`, ErrInvalid, []string{"tokenizer.json", "object"}},
		{`{}`, ErrInvalid, []string{"tokenizer.json: model", "missing"}},
		{`{"version": "2.0", ` + tinyModel + `}`, ErrUnsupported, []string{"version", "2.0"}},
		{`{"model": {"type": "WordLevel", "vocab": []}}`, ErrUnsupported, []string{"model.type", "WordLevel", "BPE"}},
		{`{"model": {"vocab": {}, "merges": []}}`, ErrInvalid, []string{"model.vocab", "empty"}},
		{`{"model": {"vocab": {"a": -1}, "merges": []}}`, ErrInvalid, []string{"model.vocab", "-1"}},
		{`{"model": {"vocab": {"a": 1.5}, "merges": []}}`, ErrInvalid, []string{"model.vocab", "1.5"}},
		{`{"model": {"vocab": {"a": 99999999999999999999}, "merges": []}}`, ErrInvalid, []string{"model.vocab"}},
		{`{"model": {"vocab": {"a": 2097152}, "merges": []}}`, ErrInvalid, []string{"model.vocab", "2097152"}},
		{`{"model": {"vocab": {"a": 1, "b": 1}, "merges": []}}`, ErrInvalid, []string{"model.vocab", "id 1"}},
		{`{"model": {"vocab": {"a": 1}}}`, ErrInvalid, []string{"model.merges", "missing"}},
		{`{"model": {"vocab": {"a": 1}, "merges": ["a"]}}`, ErrInvalid, []string{"model.merges[0]", "1 parts"}},
		{`{"model": {"vocab": {"a": 1}, "merges": [["a", "b"]]}}`, ErrInvalid, []string{"model.merges[0]", `"b"`}},
		{`{"model": {"vocab": {"a": 1, "b": 2}, "merges": ["a b"]}}`, ErrInvalid, []string{"model.merges[0]", `"ab"`}},
		{`{"model": {"vocab": {"a": 1}, "merges": [7]}}`, ErrInvalid, []string{"model.merges[0]"}},
		{`{"model": {"vocab": {"a": 1}, "merges": [null]}}`, ErrInvalid, []string{"model.merges[0]"}},
		{`{"model": {"vocab": {"a": 1}, "merges": [], "dropout": 0.1}}`, ErrUnsupported, []string{"model.dropout"}},
		{`{"model": {"vocab": {"a": 1}, "merges": [], "unk_token": "?"}}`, ErrInvalid, []string{"model.unk_token", `"?"`}},
		{`{"model": {"vocab": {"a": 1}, "merges": [], "fuse_unk": "yes"}}`, ErrInvalid, []string{"model.fuse_unk"}},
		{`{"normalizer": {"type": "ByteLevel"}, ` + tinyModel + `}`, ErrUnsupported, []string{"normalizer.type", "ByteLevel", "NFC"}},
		{`{"normalizer": {"type": "Precompiled"}, ` + tinyModel + `}`, ErrInvalid, []string{"normalizer.precompiled_charsmap", "missing"}},
		{`{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AQAAAA=="}, ` + tinyModel + `}`, ErrInvalid, []string{"normalizer.precompiled_charsmap", "wrong size"}},
		{`{"model": {"type": "Unigram", "vocab": []}}`, ErrInvalid, []string{"model.vocab", "0 entries"}},
		{`{"model": {"type": "Unigram", "vocab": [["a", 1]]}}`, ErrUnsupported, []string{"model.unk_id", "missing"}},
		{`{"model": {"type": "Unigram", "vocab": [["a", 1]], "unk_id": 1}}`, ErrInvalid, []string{"model.unk_id", "1 pieces"}},
		{`{"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}`, ErrInvalid, []string{"model.vocab[0]"}},
		{`{"normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}, ` + tinyModel + `}`, ErrInvalid, []string{"normalizer.pattern.Regex"}},
		{`{"normalizer": {"type": "Replace", "pattern": {"Regex": "\\G"}, "content": ""}, ` + tinyModel + `}`, ErrUnsupported, []string{"normalizer.pattern.Regex"}},
		{`{"normalizer": {"type": "Replace", "pattern": {}, "content": ""}, ` + tinyModel + `}`, ErrInvalid, []string{"normalizer.pattern"}},
		{`{"normalizer": ` + deep + `, ` + tinyModel + `}`, ErrInvalid, []string{"nested"}},
		{`{"normalizer": ` + many + `, ` + tinyModel + `}`, ErrInvalid, []string{"components"}},
		{`{"pre_tokenizer": {"type": "UnicodeScripts"}, ` + tinyModel + `}`, ErrUnsupported, []string{"pre_tokenizer.type", "UnicodeScripts", "ByteLevel"}},
		{`{"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "isolated"}, ` + tinyModel + `}`, ErrUnsupported, []string{"pre_tokenizer.behavior", "Isolated"}},
		{`{"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}, ` + tinyModel + `}`, ErrInvalid, []string{"pre_tokenizer.replacement"}},
		{`{"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}, ` + tinyModel + `}`, ErrUnsupported, []string{"prepend_scheme", "first"}},
		{`{"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false}, ` + tinyModel + `}`, ErrInvalid, []string{"add_prefix_space"}},
		{`{"post_processor": {"type": "Other"}, ` + tinyModel + `}`, ErrUnsupported, []string{"post_processor.type", "TemplateProcessing"}},
		{`{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}}, ` + tinyModel + `}`, ErrInvalid, []string{"single[0]", `"x"`}},
		{`{"post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}, ` + tinyModel + `}`, ErrInvalid, []string{"single", "sequence A"}},
		{`{"post_processor": {"type": "BertProcessing", "sep": ["a", 0], "cls": ["z", 99]}, ` + tinyModel + `}`, ErrInvalid, []string{"post_processor", "99"}},
		{`{"decoder": {"type": "CTC"}, ` + tinyModel + `}`, ErrUnsupported, []string{"decoder.type", "CTC", "Fuse"}},
		{`{"decoder": {"type": "Strip", "content": " ", "start": -1, "stop": 0}, ` + tinyModel + `}`, ErrInvalid, []string{"decoder.start"}},
		{`{"added_tokens": [{"id": 1, "content": "<s>"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens[0]", `"<s>"`}},
		{`{"added_tokens": [{"id": 0, "content": "x"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens[0]", `"a"`}},
		{`{"added_tokens": [{"id": 9, "content": "x"}, {"id": 9, "content": "y"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens[1]", "id 9"}},
		{`{"added_tokens": [{"id": 9, "content": "x"}, {"id": 8, "content": "x"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens[1]"}},
		{`{"added_tokens": [{"id": 3000000000, "content": "x"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens[0].id"}},
		{`{"added_tokens": [{"id": 9, "content": "` + strings.Repeat("x", maxAddedBytes+1) + `"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens[0].content"}},
		{`{"normalizer": {"type": "Lowercase"}, "added_tokens": [{"id": 8, "content": "X"}, {"id": 9, "content": "x"}], ` + tinyModel + `}`, ErrInvalid, []string{"added_tokens", "normalized form"}},
	} {
		_, err := Parse(Files{Tokenizer: []byte(c.json)})
		if !errors.Is(err, c.want) {
			t.Errorf("%.80s: got %v, want %v", c.json, err, c.want)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%.80s: %q does not mention %q", c.json, err, s)
			}
		}
	}
}

func TestLoadErrors(t *testing.T) {
	if _, err := Load(t.TempDir()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), tokenizerFile) {
		t.Errorf("empty folder: %v", err)
	}
	dir := t.TempDir()
	big, err := os.Create(filepath.Join(dir, tokenizerFile))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	if err := big.Truncate(maxFileBytes + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); !errors.Is(err, ErrInvalid) {
		t.Errorf("huge file: %v", err)
	}
}

// Reading a device such as a FIFO would never end.
func TestLoadRefusesDevices(t *testing.T) {
	for _, name := range []string{tokenizerFile, configFile, specialsFile, "chat_template.jinja"} {
		dir := t.TempDir()
		for _, f := range []string{tokenizerFile, configFile} {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Load(dir); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(filepath.Join(dir, name))
		if err := os.Symlink("/dev/zero", filepath.Join(dir, name)); err != nil {
			t.Skip(err)
		}
		_, err := Load(dir)
		if err == nil {
			_, err = LoadChatTemplate(dir)
		}
		if err == nil || !strings.Contains(err.Error(), name+": not a regular file") {
			t.Errorf("%s is /dev/zero: %v", name, err)
		}
	}
}

func TestLoadTakesPythonsNumbers(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		tokenizerFile: `{"model": {"type": "BPE", "vocab": {"Infinity": 0, "NaN": 1}, "merges": [], "dropout": null}, "x": NaN}`,
		configFile:    `{"model_max_length": Infinity, "chat_template": "{{ messages }}"}`,
		specialsFile:  `{"x": -Infinity}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(dir)
	if err != nil || tok.VocabSize() != 2 {
		t.Fatalf("%v, %v", tok, err)
	}
	if _, err := LoadChatTemplate(dir); err != nil {
		t.Error(err)
	}
	if f, err := ReadFiles(dir); err != nil || !json.Valid(f.Config) {
		t.Errorf("ReadFiles: %s, %v: other readers want JSON", f.Config, err)
	}
}

func TestConfig(t *testing.T) {
	const template = `"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
		"special_tokens": {"<s>": {"ids": [3]}}}, `
	for _, c := range []struct {
		post, config, specials string
		want                   []int32
	}{
		{"", "", "", []int32{2}},
		{"", `{"bos_token": "<s>", "add_bos_token": true}`, "", []int32{3, 2}},
		{"", `{"bos_token": {"content": "<s>"}, "add_bos_token": true}`, "", []int32{3, 2}},
		{"", `{"add_bos_token": true}`, `{"bos_token": {"content": "<s>"}}`, []int32{3, 2}},
		{template, `{"bos_token": "<s>", "add_bos_token": true}`, "", []int32{3, 2}},
		{template, `{"bos_token": "<s>", "add_bos_token": false}`, "", []int32{3, 2}},
		{template, `{"bos_token": "<s>", "add_bos_token": false, "tokenizer_class": "LlamaTokenizer"}`, "", []int32{2}},
		{"", `{"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizerFast"}`, "", []int32{3, 2}},
		{template, `{"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": true}`, "", []int32{3, 2}},
		{"", `{"eos_token": "</s>", "add_eos_token": true, "tokenizer_class": "PreTrainedTokenizerFast"}`, "", []int32{2}},
		{template, `{"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": true, "tokenizer_class": "LlamaTokenizerFast"}`, "", []int32{3, 2, 4}},
		{"", `{"tokenizer_class": "LlamaTokenizerFast"}`, "", []int32{2}},
	} {
		tok, err := Parse(Files{Tokenizer: []byte(`{` + c.post + tinyModel + `}`), Config: []byte(c.config), Specials: []byte(c.specials)})
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		if got := tok.Encode("ab", true); !slices.Equal(got, c.want) {
			t.Errorf("%q %s: %v, want %v", c.post, c.config, got, c.want)
		}
		if got := tok.Encode("ab", false); !slices.Equal(got, []int32{2}) {
			t.Errorf("%q %s: without special tokens %v", c.post, c.config, got)
		}
	}
	for config, says := range map[string]string{
		`{"bos_token": 1}`: "tokenizer_config.json: bos_token",
		`{"bos_token": "nope", "add_bos_token": true}`:      "add_bos_token",
		`{"bos_token": "<s>", "add_bos_token": "x"}`:        "add_bos_token",
		`{"added_tokens_decoder": {"x": {"content": "y"}}}`: "added_tokens_decoder",
		`{"added_tokens_decoder": {"0": {"content": "y"}}}`: "added_tokens_decoder",
	} {
		if _, err := Parse(Files{Tokenizer: []byte(`{` + tinyModel + `}`), Config: []byte(config)}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", config, err)
		}
	}
	tok, err := Parse(Files{Tokenizer: []byte(`{` + tinyModel + `}`),
		Config: []byte(`{"bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": {"7": {"content": "<x>", "special": true}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("ab<x>a", false); !slices.Equal(got, []int32{2, 7, 0}) {
		t.Errorf("added_tokens_decoder: %v", got)
	}
	bos, ok1 := tok.BOS()
	eos, ok2 := tok.EOS()
	if bos != 3 || eos != 4 || !ok1 || !ok2 || tok.VocabSize() != 8 || !tok.IsSpecial(7) || tok.IsSpecial(3) {
		t.Errorf("bos %d %v, eos %d %v, size %d", bos, ok1, eos, ok2, tok.VocabSize())
	}
	if id, ok := tok.ID("<x>"); !ok || id != 7 || tok.Token(7) != "<x>" || tok.Token(6) != "" {
		t.Errorf("ID(<x>) = %d %v, Token(7) = %q", id, ok, tok.Token(7))
	}
}

// FuzzLoad: no file makes Parse panic, and loaded tokenizers can encode and decode.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{`+tinyModel+`, "added_tokens": [{"id": 3, "content": "<s>", "lstrip": true, "rstrip": true, "single_word": true}]}`), []byte(``))
	f.Add([]byte(`{"model": {"type": "BPE", "unk_token": "?", "fuse_unk": true, "byte_fallback": true, "ignore_merges": true, "continuing_subword_prefix": "#",
		"end_of_word_suffix": "$", "vocab": {"?": 0, "<0x20>": 1, "<0xC3>": 2, "a": 3, "#b$": 4, "ab$": 5, "<0xA9>": 9}, "merges": [["a", "#b$"]]}}`), []byte(`{}`))
	for i, parts := range []string{
		`"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}, {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "StripAccents"}]}`,
		`"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}]}`,
		`"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}, "decoder": {"type": "Metaspace", "replacement": "_"}`,
		`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a|(?m:.)+?|[b&&[^c]]"}, "behavior": "MergedWithNext", "invert": true}`,
		`"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "ByteLevel", "add_prefix_space": true}]}`,
		`"pre_tokenizer": {"type": "Whitespace"}, "post_processor": {"type": "RobertaProcessing", "sep": ["a", 0], "cls": ["b", 1]}`,
		`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [3, 4]}}}`,
		`"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Strip", "content": "a", "start": 1, "stop": 1}, {"type": "Fuse"}]}`,
		`"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": ""}, {"type": "ByteLevel"}, {"type": "Strip", "content": "a", "start": 1, "stop": 1}]}`,
	} {
		f.Add(fmt.Appendf(nil, `{%s, %s}`, tinyModel, parts), fmt.Appendf(nil, `{"added_tokens_decoder": {"%d": {"content": "y"}}}`, i+9))
	}
	f.Fuzz(func(t *testing.T, tokenizer, config []byte) {
		if strings.Count(string(tokenizer), "Regex") > 0 && strings.ContainsAny(string(tokenizer), "*+{") && len(tokenizer) < 4096 {
			return // a mutated pattern may backtrack up to its time limit
		}
		tok, err := Parse(Files{Tokenizer: tokenizer, Config: config})
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("error of neither kind: %v", err)
			}
			return
		}
		ids := tok.Encode(" ab <s>é\n", true)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Fatalf("id %d outside [0, %d)", id, tok.VocabSize())
			}
		}
		s := tok.NewStream(false)
		got := ""
		for _, id := range ids {
			got += s.Push(id)
		}
		if got += s.Flush(); got != tok.Decode(ids, false) {
			t.Fatalf("stream %q, Decode %q", got, tok.Decode(ids, false))
		}
	})
}

// FuzzText: decoding inverts the encoding of byte-level tokenizers. No tokenizer panics, and literal
// text never produces a special token.
func FuzzText(f *testing.F) {
	var g goldenFile
	readJSON(f, "testdata/hf/llama.golden.json", &g)
	for _, c := range g.Cases {
		f.Add(c.Text)
	}
	var exact, all []*Tokenizer
	for _, name := range []string{"llama", "deepseek_v3", "gpt2", "o200k", "no_pretokenizer"} {
		exact = append(exact, loadHF(f, name))
	}
	for _, name := range []string{"qwen2_nfc", "spm_llama2", "spm_gemma", "words_lower", "falcon"} {
		all = append(all, loadHF(f, name))
	}
	all = append(all, exact...)
	f.Fuzz(func(t *testing.T, text string) {
		clean := text
		if !utf8.ValidString(text) {
			clean = strings.ToValidUTF8(text, "\uFFFD")
		}
		for _, tok := range exact {
			if got := tok.Decode(tok.EncodeLiteral(text), false); got != clean {
				t.Fatalf("%q came back as %q", clean, got)
			}
		}
		for _, tok := range all {
			ids := tok.Encode(text, true)
			if s := tok.Decode(ids, false); !utf8.ValidString(s) {
				t.Fatalf("Decode made %q", s)
			}
			for _, id := range tok.EncodeLiteral(text) {
				if tok.IsSpecial(id) && id != tok.vocab.unk {
					t.Fatalf("literal %q made %q", text, tok.Token(id))
				}
			}
		}
	})
}
