package tokenizer

// Tokenizer is one loaded tokenizer.json with its tokenizer_config.json.
type Tokenizer struct {
	added      *addedVocab
	normalizer normalizers
	pre        []pretokenizer
	raw        bool // words reach the model as bytes, see bpe.takesBytes
	model      *bpe
	post       postProcessor
	decoder    *decoder
	config     config
	size       int
	gguf       bool // from a GGUF file

	warnings []string
}

// Warnings say what of the files was not taken as it stands, for the user to see.
func (t *Tokenizer) Warnings() []string { return t.warnings }

// VocabSize is the largest token id plus one, added tokens included: the least
// length of a vector of logits. The ids below may have holes.
func (t *Tokenizer) VocabSize() int { return t.size }

// Token is the string of an id as the file spells it (byte-level vocabularies
// spell bytes in their alphabet, "Ġthe"), "" if there is none.
func (t *Tokenizer) Token(id int32) string {
	if a := t.added.byID[id]; a != nil {
		return a.content
	}
	s, _ := t.model.token(id)
	return s
}

// ID is the inverse of Token.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if a := t.added.byContent[token]; a != nil {
		return a.id, true
	}
	id, ok := t.model.vocab[token]
	return id, ok
}

// TokenBytes is what a token adds to a text when it stands amid others: raw
// bytes, possibly part of a character. nil if there is no such id.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	var s string
	if a := t.added.byID[id]; a != nil {
		s = a.content
	} else if tok, ok := t.model.token(id); ok {
		s = tok
	} else {
		return nil
	}
	for _, f := range t.decoder.single {
		s = f(s)
	}
	return []byte(s)
}

// IsSpecial: the id is a control token, which Decode with skipSpecial hides and
// which EncodeLiteral never makes.
func (t *Tokenizer) IsSpecial(id int32) bool {
	a := t.added.byID[id]
	return a != nil && a.special
}

// EOS is the end-of-sequence token of tokenizer_config.json.
func (t *Tokenizer) EOS() (int32, bool) { return t.named(t.config.eos) }

func (t *Tokenizer) named(token string) (int32, bool) {
	if token == "" {
		return 0, false
	}
	return t.ID(token)
}

// PlainBytes is TokenBytes of tokens that stand for text: nil for control tokens.
func (t *Tokenizer) PlainBytes(id int32) []byte {
	if t.IsSpecial(id) {
		return nil
	}
	return t.TokenBytes(id)
}
