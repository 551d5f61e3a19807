package vocabfile

import (
	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/sentencepiece"
)

// normalizes reports whether the file has a table of replacements or removes spaces.
func (v *ggufVocab) normalizes(f *gguf.File) bool {
	_, table := f.Value(GGUFPrefix + "precompiled_charsmap")
	return table || attempt.Must(f.Bool(GGUFPrefix+"remove_extra_whitespaces", false))
}

func (v *ggufVocab) scores(f *gguf.File) []float32 {
	scores := attempt.Must(f.Float32s(GGUFPrefix + "scores"))
	if len(scores) != len(v.tokens) {
		panic(attempt.Failure{Err: Invalid(GGUFPrefix+"scores", "has %d entries for %d tokens", len(scores), len(v.tokens))})
	}
	for id, score := range scores {
		if score != score {
			panic(attempt.Failure{Err: Invalid(GGUFPrefix+"scores", "token %d has a NaN: the order of merges is undefined", id)})
		}
	}
	return scores
}

// sentencePieceFile converts a SentencePiece vocabulary with its normalizer. It fills extra.
func (v *ggufVocab) sentencePieceFile(f *gguf.File, kind int, extra *Extra) map[string]any {
	scores := v.scores(f)
	list := make([]sentencepiece.Piece, len(v.tokens))
	for id, s := range v.tokens {
		list[id] = sentencepiece.Piece{Text: s, Score: scores[id], Type: int(v.kind(id))}
	}
	if id := v.id(f, "unknown_token_id"); id >= 0 {
		list[id].Type = Unknown
	}
	m := &sentencepiece.Model{Escape: true, DummyPrefix: attempt.Must(f.Bool(GGUFPrefix+"add_space_prefix", true)),
		RemoveExtra: attempt.Must(f.Bool(GGUFPrefix+"remove_extra_whitespaces", false))}
	for _, b := range attempt.Must(f.Ints(GGUFPrefix + "precompiled_charsmap")) {
		m.Charsmap = append(m.Charsmap, byte(b))
	}
	p := pieces{name: GGUFPrefix + "tokens", list: list, extra: extra}
	doc := p.document(kind, true)
	doc["normalizer"] = sentencePieceNormalizer(m, p.symbols())
	doc["decoder"] = piecesDecoder(m.DummyPrefix || m.RemoveExtra)
	bos, eos := v.id(f, "bos_token_id"), v.id(f, "eos_token_id")
	if attempt.Must(f.Text("general.architecture", "")) == "bert" && bos >= 0 && eos >= 0 { // XLM-RoBERTa
		doc["post_processor"] = robertaTemplates(named{v.tokens[bos], bos}, named{v.tokens[eos], eos})
	}
	return doc
}
