package tokenizer

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/wordpiece"
)

// maxWordChars bounds max_input_chars_per_word, and with it the work for one word.
const maxWordChars = 1 << 16

// wordPiece is the model "WordPiece".
type wordPiece struct {
	*vocabulary
	m     *wordpiece.Model
	cache *wordCache
}

func parseWordPiece(o object) *wordPiece {
	v := parseVocab(o.at("vocab"))
	unk := o.text("unk_token", "[UNK]")
	id, ok := v.ids[unk]
	if !ok {
		panic(attempt.Failure{Err: invalid(join(o.path, "unk_token"), "%q is not in model.vocab", unk)})
	}
	v.unk = id
	chars := 100
	if n := o.at("max_input_chars_per_word"); !n.null() {
		chars = n.count(maxWordChars)
	}
	m := wordpiece.New(v.ids, id, o.text("continuing_subword_prefix", "##"), chars)
	return &wordPiece{v, m, newWordCache(len(v.ids))}
}

func (w *wordPiece) encode(dst []int32, word string, _, literal bool) []int32 {
	if literal {
		return w.m.Encode(dst, word, w.banned)
	}
	if ids, ok := w.cache.get(word); ok {
		return append(dst, ids...)
	}
	n := len(dst)
	dst = w.m.Encode(dst, word, func(int32) bool { return false })
	w.cache.put(word, dst[n:])
	return dst
}

// wordPieceStage is the decoder "WordPiece": it joins the pieces of a word and puts a space before
// each other token except the first.
type wordPieceStage struct {
	prefix  string
	cleanup bool
	later   bool
}

func parseWordPieceDecoder(o object) wordPieceStage {
	return wordPieceStage{prefix: o.text("prefix", "##"), cleanup: o.flag("cleanup", true)}
}

func (x *wordPieceStage) push(s string, out func(string)) {
	if x.later {
		s = x.inside(s)
	} else {
		s = x.clean(s)
	}
	x.later = true
	out(s)
}

// inside returns the text of a token that is not the first.
func (x *wordPieceStage) inside(s string) string {
	if rest, ok := strings.CutPrefix(s, x.prefix); ok {
		s = rest
	} else {
		s = " " + s
	}
	return x.clean(s)
}

// cleaned lists the replacements of the library's "cleanup", in its order.
var cleaned = [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"},
	{" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}}

func (x *wordPieceStage) clean(s string) string {
	if !x.cleanup {
		return s
	}
	for _, c := range cleaned {
		s = strings.ReplaceAll(s, c[0], c[1])
	}
	return s
}

func (x *wordPieceStage) flush(func(string)) {}
