package vocabfile

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// VocabText is the name of BERT's vocabulary: one token per line, and the line is the id.
const VocabText = "vocab.txt"

// wordPieceClasses are the transformers classes that read vocab.txt.
var wordPieceClasses = []string{"BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer"}

// WordPiece converts vocab.txt as transformers does for these classes.
func WordPiece(data []byte, s Settings) ([]byte, error) {
	return attempt.At(func() []byte { return wordPiece(data, s) })
}

func wordPiece(data []byte, s Settings) []byte {
	if !utf8.Valid(data) {
		panic(attempt.Failure{Err: Invalid(VocabText, "is not valid UTF-8")})
	}
	class := attempt.Must(s.class())
	names := [5]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
	post := bertTemplates
	switch class {
	case "", "BertTokenizer", "DistilBertTokenizer":
	case "MPNetTokenizer":
		names, post = [5]string{"<pad>", "[UNK]", "<s>", "</s>", "<mask>"}, robertaTemplates
	default:
		panic(attempt.Failure{Err: Unsupported("tokenizer_config.json: tokenizer_class", "class", class, wordPieceClasses)})
	}
	vocab := map[string]int{}
	id := 0
	for line := range strings.Lines(string(data)) {
		if id >= MaxTokenID {
			panic(attempt.Failure{Err: Invalid(VocabText, "has more than %d lines", MaxTokenID)})
		}
		vocab[strings.TrimRight(line, "\r\n")] = id
		id++
	}
	var added []map[string]any
	for i, name := range []string{"pad_token", "unk_token", "cls_token", "sep_token", "mask_token"} {
		names[i] = s.token(name, names[i])
		id, ok := vocab[names[i]]
		if !ok {
			if i == 1 || i == 2 || i == 3 {
				panic(attempt.Failure{Err: Invalid(VocabText, "lacks the %s %q; tokenizer_config.json can name another", name, names[i])})
			}
			continue
		}
		lstrip := class == "MPNetTokenizer" && name == "mask_token"
		added = append(added, map[string]any{"id": id, "content": names[i], "special": true, "normalized": false, "lstrip": lstrip})
	}
	lower, chinese := true, true
	for name, to := range map[string]*bool{"do_lower_case": &lower, "tokenize_chinese_chars": &chinese} {
		if v := attempt.Must(s.flag(name)); v != nil {
			*to = *v
		}
	}
	doc := map[string]any{
		"added_tokens": added,
		"normalizer": map[string]any{"type": "BertNormalizer", "lowercase": lower, "handle_chinese_chars": chinese,
			"strip_accents": attempt.Must(s.flag("strip_accents"))},
		"pre_tokenizer":  map[string]any{"type": "BertPreTokenizer"},
		"model":          map[string]any{"type": "WordPiece", "vocab": vocab, "unk_token": names[1]},
		"post_processor": post(named{names[2], vocab[names[2]]}, named{names[3], vocab[names[3]]}),
		"decoder":        map[string]any{"type": "WordPiece", "prefix": "##", "cleanup": true},
	}
	return attempt.Must(json.Marshal(doc))
}

// named is a token with its id.
type named struct {
	token string
	id    int
}

// bertTemplates is [CLS] A [SEP] and [CLS] A [SEP] B [SEP], with the second text of type 1.
func bertTemplates(cls, sep named) map[string]any {
	return map[string]any{"type": "BertProcessing", "cls": []any{cls.token, cls.id}, "sep": []any{sep.token, sep.id}}
}

// robertaTemplates is <s> A </s> and <s> A </s></s> B </s>, all of type 0.
func robertaTemplates(cls, sep named) map[string]any {
	return map[string]any{"type": "RobertaProcessing", "cls": []any{cls.token, cls.id}, "sep": []any{sep.token, sep.id}}
}
