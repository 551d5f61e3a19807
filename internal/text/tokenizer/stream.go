package tokenizer

// Stream decodes tokens as they arrive. It is not safe for concurrent use.
type Stream struct {
	t      *Tokenizer
	skip   bool
	stages []stage
	sinks  []func(string) // sinks[i] feeds stage i; the last one collects the text
	text   []byte
}

// NewStream starts a decoding. The joined results of Push and the final Flush equal Decode of all
// ids, and each result consists of whole characters. skipSpecial hides special tokens.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skip: skipSpecial}
	s.reset()
	return s
}

func (s *Stream) reset() {
	d := s.t.decoder
	s.stages = make([]stage, len(d.make))
	s.sinks = make([]func(string), len(d.make)+1)
	s.sinks[len(d.make)] = func(p string) { s.text = append(s.text, p...) }
	for i := len(d.make) - 1; i >= 0; i-- {
		st, out := d.make[i](), s.sinks[i+1]
		s.stages[i] = st
		s.sinks[i] = func(p string) { st.push(p, out) }
	}
}

// Push adds one token and returns the newly completed text, often "", because a character may need
// several tokens. Ids outside the vocabulary are skipped.
func (s *Stream) Push(id int32) string {
	s.add(id, !s.skip)
	return s.take()
}

// Show is Push in a stream that skips no special tokens: the text of one comes after that of an incomplete character.
func (s *Stream) Show(id int32) string {
	s.add(id, true)
	return s.take()
}

func (s *Stream) add(id int32, special bool) {
	if a := s.t.added.byID[id]; a != nil {
		if special || !a.special {
			s.sinks[0](a.decoded)
		}
	} else if tok, ok := s.t.vocab.token(id); ok {
		s.sinks[0](tok)
	}
}

func (s *Stream) take() string {
	out := string(s.text)
	s.text = s.text[:0]
	return out
}

// Flush ends the decoding and returns the rest, with U+FFFD for an incomplete character. The stream
// can then be reused.
func (s *Stream) Flush() string {
	for i, st := range s.stages {
		st.flush(s.sinks[i+1])
	}
	out := s.take()
	s.reset()
	return out
}

// Decode converts ids to text. skipSpecial omits special tokens. Ids outside the vocabulary are
// skipped.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	for _, id := range ids {
		s.add(id, !skipSpecial)
	}
	for i, st := range s.stages {
		st.flush(s.sinks[i+1])
	}
	return string(s.text)
}
