package tokenizer

// Tokenizer is a loaded tokenizer.json with its tokenizer_config.json.
type Tokenizer struct {
	added      *addedVocab
	normalizer normalizers
	pre        []pretokenizer
	raw        bool // words reach the model as bytes, see bpe.takesBytes
	vocab      *vocabulary
	model      model
	post       postProcessor
	decoder    *decoder
	config     config
	size       int
	converted  bool // from a file without a template: a GGUF file, a SentencePiece model

	warnings []string
}

// Warnings lists for the user which settings of the files were not applied as written.
func (t *Tokenizer) Warnings() []string { return t.warnings }

// VocabSize returns the largest token id plus one, including added tokens. A vector of logits has
// at least this length. Not every smaller id exists.
func (t *Tokenizer) VocabSize() int { return t.size }

// Token returns the string of an id as the file spells it (byte-level vocabularies use their
// alphabet, "Ġthe"), or "".
func (t *Tokenizer) Token(id int32) string {
	if a := t.added.byID[id]; a != nil {
		return a.content
	}
	s, _ := t.vocab.token(id)
	return s
}

// ID returns the id of a Token string.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if a := t.added.byContent[token]; a != nil {
		return a.id, true
	}
	id, ok := t.vocab.ids[token]
	return id, ok
}

// TokenBytes returns the bytes that a token adds inside a text, possibly part of a character. It
// returns nil for an unknown id.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	var s string
	if a := t.added.byID[id]; a != nil {
		s = a.content
	} else if tok, ok := t.vocab.token(id); ok {
		s = tok
	} else {
		return nil
	}
	for _, f := range t.decoder.single {
		s = f(s)
	}
	return []byte(s)
}

// IsSpecial reports whether the id is a control token. Decode with skipSpecial hides it, and
// EncodeLiteral never produces it.
func (t *Tokenizer) IsSpecial(id int32) bool {
	a := t.added.byID[id]
	return a != nil && a.special
}

// EOS returns the end-of-sequence token of tokenizer_config.json.
func (t *Tokenizer) EOS() (int32, bool) { return t.named(t.config.eos) }

func (t *Tokenizer) named(token string) (int32, bool) {
	if token == "" {
		return 0, false
	}
	return t.ID(token)
}

// PlainBytes is TokenBytes for text tokens; it returns nil for control tokens.
func (t *Tokenizer) PlainBytes(id int32) []byte {
	if t.IsSpecial(id) {
		return nil
	}
	return t.TokenBytes(id)
}
