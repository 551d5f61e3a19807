package vocabfile

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/alphabet"
)

// rankLine is a line of a tiktoken file: the bytes of a token in base64, and its rank, which is its id.
var rankLine = regexp.MustCompile(`^[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n`)

// IsTiktoken reports whether data begins like a tiktoken file.
func IsTiktoken(data []byte) bool { return rankLine.Match(data) }

// tiktokenFamily is the part of a tokenizer class that is in its code: everything besides the ranks.
type tiktokenFamily struct {
	pattern    string
	normalizer string
	specials   func(base int, s Settings) []string // with ids from base on
	bos, eos   string
	addBOS     bool
}

var tiktokenFamilies = map[string]tiktokenFamily{
	"TikTokenTokenizer": {pattern: kimiPattern, specials: kimiSpecials}, // Kimi K2
	"QWenTokenizer":     {pattern: Qwen2Pattern, normalizer: "NFC", specials: qwenSpecials, eos: "<|endoftext|>"},
	// Llama 3 in Meta's own form has no class.
	"": {pattern: Llama3Pattern, specials: llama3Specials, bos: "<|begin_of_text|>", eos: "<|end_of_text|>", addBOS: true},
}

// Tiktoken converts a file of ranks. The split pattern and the special tokens come from the class that
// tokenizer_config.json names; its member pat_str replaces the pattern.
func Tiktoken(name string, data []byte, s Settings) (doc []byte, extra *Extra, err error) {
	_, err = attempt.At(func() any { doc, extra = tiktoken(name, string(data), s); return nil })
	return doc, extra, err
}

func tiktoken(name, data string, s Settings) ([]byte, *Extra) {
	class := attempt.Must(s.class())
	family, ok := tiktokenFamilies[class]
	if !ok {
		panic(attempt.Failure{Err: Unsupported("tokenizer_config.json: tokenizer_class", "class", class,
			[]string{"QWenTokenizer", "TikTokenTokenizer"})})
	}
	pattern := family.pattern
	if raw, ok := s.Raw["pat_str"]; ok && json.Unmarshal(raw, &pattern) != nil {
		panic(attempt.Failure{Err: Invalid("tokenizer_config.json: pat_str", "is not a string")})
	}
	vocab := map[string]int{}
	base := 0
	number := 0
	for line := range strings.Lines(data) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		text, rank, ok := strings.Cut(line, " ")
		token, err := base64.StdEncoding.DecodeString(text)
		id, err2 := strconv.Atoi(rank)
		if !ok || err != nil || err2 != nil || len(token) == 0 || id < 0 || id >= MaxTokenID-maxSpecials {
			panic(attempt.Failure{Err: Invalid(name, "line %d is not a token in base64 and its rank below %d", number, MaxTokenID-maxSpecials)})
		}
		spelled := alphabet.Spell(string(token))
		if _, twice := vocab[spelled]; twice {
			panic(attempt.Failure{Err: Invalid(name, "line %d has a token of an earlier line", number)})
		}
		vocab[spelled] = id
		base = max(base, id+1)
	}
	extra := &Extra{Scores: make([]float32, base), BOS: family.bos, EOS: family.eos}
	for id := range extra.Scores {
		extra.Scores[id] = -float32(id) // exact: ids are below 1<<24
	}
	added := []map[string]any{}
	for i, t := range family.specials(base, s) {
		added = append(added, map[string]any{"id": base + i, "content": t, "special": true, "normalized": false})
	}
	doc := map[string]any{
		"added_tokens": added,
		"model":        map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{}, "ignore_merges": true},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": pattern}, "behavior": "Isolated"},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		}},
		"decoder": map[string]any{"type": "ByteLevel"},
	}
	if family.normalizer != "" {
		doc["normalizer"] = map[string]any{"type": family.normalizer}
	}
	if family.addBOS {
		doc["post_processor"] = startTemplates(named{family.bos, base})
	}
	return attempt.Must(json.Marshal(doc)), extra
}

// maxSpecials is the number of special tokens that a class adds at most.
const maxSpecials = 256

// kimiSpecials are 256 tokens; those that added_tokens_decoder names keep its names.
func kimiSpecials(base int, s Settings) []string {
	var names map[string]struct {
		Content string `json:"content"`
	}
	if raw, ok := s.Raw["added_tokens_decoder"]; ok && json.Unmarshal(raw, &names) != nil {
		panic(attempt.Failure{Err: Invalid("tokenizer_config.json: added_tokens_decoder", "is not an object of tokens")})
	}
	out := make([]string, maxSpecials)
	for i := range out {
		out[i] = names[strconv.Itoa(base+i)].Content
		if out[i] == "" {
			out[i] = fmt.Sprintf("<|reserved_token_%d|>", base+i)
		}
	}
	return out
}

func qwenSpecials(int, Settings) []string {
	out := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
	for i := range 205 {
		out = append(out, fmt.Sprintf("<|extra_%d|>", i))
	}
	return out
}

func llama3Specials(int, Settings) []string {
	reserved := func(i int) string { return fmt.Sprintf("<|reserved_special_token_%d|>", i) }
	out := []string{"<|begin_of_text|>", "<|end_of_text|>", reserved(0), reserved(1), reserved(2), reserved(3), "<|start_header_id|>",
		"<|end_header_id|>", reserved(4), "<|eot_id|>"}
	for i := 5; len(out) < maxSpecials; i++ {
		out = append(out, reserved(i))
	}
	return out
}

// startTemplates is BOS A, and BOS A B.
func startTemplates(bos named) map[string]any {
	text := func(id string) map[string]any {
		return map[string]any{"Sequence": map[string]any{"id": id, "type_id": 0}}
	}
	start := map[string]any{"SpecialToken": map[string]any{"id": bos.token, "type_id": 0}}
	return map[string]any{"type": "TemplateProcessing", "single": []any{start, text("A")}, "pair": []any{start, text("A"), text("B")},
		"special_tokens": map[string]any{bos.token: map[string]any{"id": bos.token, "ids": []int{bos.id}, "tokens": []string{bos.token}}}}
}
