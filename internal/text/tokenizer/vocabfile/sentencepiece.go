package vocabfile

import (
	"encoding/base64"
	"encoding/json"
	"math"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/sentencepiece"
)

// SentencePiece converts a *.model file. With the classes of XLM-RoBERTa and T5 it gets their ids and
// templates; with others, the ids of the file.
func SentencePiece(name string, data []byte, s Settings) ([]byte, *Extra, error) {
	m, err := sentencepiece.Parse(data)
	if err != nil {
		return nil, nil, Invalid(name, "is not a SentencePiece model: %v", err)
	}
	var doc []byte
	var extra *Extra
	_, err = attempt.At(func() any { doc, extra = sentencePiece(name, m, s); return nil })
	return doc, extra, err
}

func sentencePiece(name string, m *sentencepiece.Model, s Settings) ([]byte, *Extra) {
	p := pieces{name: name, list: m.Pieces, extra: &Extra{}}
	for at, to := range map[int]*string{m.BOS: &p.extra.BOS, m.EOS: &p.extra.EOS} {
		if at >= 0 && at < len(m.Pieces) && m.Pieces[at].Type == Control {
			*to = m.Pieces[at].Text
		}
	}
	var post map[string]any
	switch attempt.Must(s.class()) {
	case "XLMRobertaTokenizer":
		p.fairseq()
		post = robertaTemplates(named{"<s>", 0}, named{"</s>", 2})
	case "T5Tokenizer":
		eos := named{p.extra.EOS, m.EOS}
		if eos.token == "" {
			panic(attempt.Failure{Err: Invalid(name, "has no end token, which T5Tokenizer needs")})
		}
		post = endTemplates(eos)
	}
	doc := p.document(m.Kind, m.ByteFallback)
	doc["normalizer"] = sentencePieceNormalizer(m, p.symbols())
	if post != nil {
		doc["post_processor"] = post
	}
	doc["decoder"] = piecesDecoder(m.DummyPrefix || m.RemoveExtra)
	return attempt.Must(json.Marshal(doc)), p.extra
}

// pieces is a SentencePiece vocabulary by id.
type pieces struct {
	name  string
	list  []sentencepiece.Piece
	extra *Extra
}

// fairseq gives the pieces the ids of XLM-RoBERTa: one more than their own, after four tokens in
// another order.
func (p *pieces) fairseq() {
	if len(p.list) < 4 || p.list[0].Type != Unknown || p.list[1].Type != Control || p.list[2].Type != Control {
		panic(attempt.Failure{Err: Invalid(p.name, "does not begin with <unk>, <s> and </s>, which XLMRobertaTokenizer needs")})
	}
	head := []sentencepiece.Piece{{Text: "<s>", Type: Control}, {Text: "<pad>", Type: Control},
		{Text: "</s>", Type: Control}, {Text: "<unk>", Type: Unknown}}
	p.list = append(append(head, p.list[3:]...), sentencepiece.Piece{Text: "<mask>", Type: Control})
}

// document returns the model and the added tokens, and fills extra.
func (p *pieces) document(kind int, bytes bool) map[string]any {
	first, unk := map[string]int{}, -1
	added := []map[string]any{}
	p.extra.Again = map[int32]int{}
	for id, piece := range p.list {
		p.extra.Scores = append(p.extra.Scores, piece.Score)
		p.extra.Types = append(p.extra.Types, uint8(max(0, min(piece.Type, 255))))
		if old, ok := first[piece.Text]; ok {
			p.extra.Again[int32(id)] = old
			continue
		}
		first[piece.Text] = id
		if piece.Type == Unknown && unk < 0 {
			unk = id
		}
		if (piece.Type == Unknown || piece.Type == Control) && piece.Text != "" {
			added = append(added,
				map[string]any{"id": id, "content": piece.Text, "special": true, "normalized": false, "lstrip": piece.Text == "<mask>"})
		}
	}
	if unk < 0 {
		panic(attempt.Failure{Err: Invalid(p.name, "has no unknown piece")})
	}
	doc := map[string]any{"added_tokens": added}
	switch kind {
	case sentencepiece.Unigram:
		vocab := make([][2]any, len(p.list))
		for id, piece := range p.list {
			if math.IsInf(float64(piece.Score), 0) {
				panic(attempt.Failure{Err: Invalid(p.name, "the piece %d has an infinite score", id)})
			}
			vocab[id] = [2]any{piece.Text, float64(piece.Score)} // exact; a float32 would be written shorter
		}
		doc["model"] = map[string]any{"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": bytes}
	case sentencepiece.BPE:
		for id, piece := range p.list {
			if piece.Type == Unused {
				panic(attempt.Failure{Err: Invalid(p.name, "has the unused piece %d in a BPE model, which is not supported", id)})
			}
		}
		doc["model"] = map[string]any{"type": "BPE", "unk_token": p.list[unk].Text, "vocab": first, "merges": []any{},
			"byte_fallback": bytes, "fuse_unk": true}
		if symbols := p.symbols(); len(symbols) > 0 {
			doc["pre_tokenizer"] = map[string]any{"type": "SentencePieceSymbols", "symbols": symbols}
		}
	default:
		panic(attempt.Failure{Err: Unsupported(p.name+": trainer_spec.model_type", "model",
			map[int]string{3: "WORD", 4: "CHAR"}[kind], []string{"UNIGRAM", "BPE"})})
	}
	return doc
}

// symbols returns the user-defined pieces.
func (p *pieces) symbols() []string {
	out := []string{}
	for _, piece := range p.list {
		if piece.Type == UserDefined {
			out = append(out, piece.Text)
		}
	}
	return out
}

func sentencePieceNormalizer(m *sentencepiece.Model, symbols []string) map[string]any {
	return map[string]any{"type": "SentencePiece", "precompiled_charsmap": base64.StdEncoding.EncodeToString(m.Charsmap),
		"add_dummy_prefix":         m.DummyPrefix,
		"remove_extra_whitespaces": m.RemoveExtra, "escape_whitespaces": m.Escape, "treat_whitespace_as_suffix": m.Suffix, "symbols": symbols}
}

// endTemplates is A </s> and A </s> B </s>.
func endTemplates(eos named) map[string]any {
	text := func(id string) map[string]any {
		return map[string]any{"Sequence": map[string]any{"id": id, "type_id": 0}}
	}
	end := map[string]any{"SpecialToken": map[string]any{"id": eos.token, "type_id": 0}}
	return map[string]any{"type": "TemplateProcessing", "single": []any{text("A"), end}, "pair": []any{text("A"), end, text("B"), end},
		"special_tokens": map[string]any{eos.token: map[string]any{"id": eos.token, "ids": []int{eos.id}, "tokens": []string{eos.token}}}}
}

// piecesDecoder makes spaces of marks and characters of bytes. strip: the text begins with a space that
// the normalizer added.
func piecesDecoder(strip bool) map[string]any {
	decoders := []any{map[string]any{"type": "Replace", "pattern": map[string]any{"String": spaceMark}, "content": " "},
		map[string]any{"type": "ByteFallback"}, map[string]any{"type": "Fuse"}}
	if strip {
		decoders = append(decoders, map[string]any{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return map[string]any{"type": "Sequence", "decoders": decoders}
}
