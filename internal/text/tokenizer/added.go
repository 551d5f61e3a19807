package tokenizer

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// addedToken is one entry of "added_tokens": a string that is extracted from a text before BPE.
type addedToken struct {
	id         int32
	content    string
	decoded    string // input of the decoder; for a normalized token its normalized form
	special    bool   // control token: hidden by Decode with skipSpecial
	singleWord bool   // only between non-word characters
	lstrip     bool   // also removes the white space on its left
	rstrip     bool
	normalized bool // matched in normalized text, by its normalized form
}

// addedVocab extracts added tokens from texts.
type addedVocab struct {
	byID       map[int32]*addedToken
	byContent  map[string]*addedToken
	plain      trie // tokens matched in the text as given
	normalized trie // normalized forms, matched in normalized text
	raw        trie // contents of the normalized tokens, for partly literal text
}

func parseAddedToken(o object) *addedToken {
	var t addedToken
	t.content = o.at("content").str()
	if len(t.content) > maxAddedBytes {
		panic(attempt.Failure{Err: invalid(join(o.path, "content"), "has %d bytes, the limit is %d", len(t.content), maxAddedBytes)})
	}
	for _, f := range []struct {
		name string
		to   *bool
		def  bool
	}{
		{"special", &t.special, false}, {"single_word", &t.singleWord, false},
		{"lstrip", &t.lstrip, false}, {"rstrip", &t.rstrip, false},
	} {
		*f.to = o.flag(f.name, f.def)
	}
	t.normalized = o.flag("normalized", !t.special)
	return &t
}

// add adds a token. m has the model's own vocabulary.
func (a *addedVocab) add(path string, t *addedToken, m *vocabulary) {
	if t.content == "" {
		return
	}
	if text := a.conflict(t, m); text != "" {
		panic(attempt.Failure{Err: invalid(path, "%s", text)})
	}
	if len(a.byID) >= maxAddedTokens {
		panic(attempt.Failure{Err: invalid(path, "more than %d added tokens", maxAddedTokens)})
	}
	a.byID[t.id], a.byContent[t.content] = t, t
}

// conflict describes how a token contradicts the others. It returns "" if it does not.
func (a *addedVocab) conflict(t *addedToken, m *vocabulary) string {
	if have, ok := m.ids[t.content]; ok && have != t.id {
		return fmt.Sprintf("gives %q the id %d, but model.vocab gives it %d", t.content, t.id, have)
	}
	if s, ok := m.token(t.id); ok && s != t.content {
		return fmt.Sprintf("gives %q the id %d, which model.vocab gives to %q", t.content, t.id, s)
	}
	if old := a.byID[t.id]; old != nil && old.content != t.content {
		return fmt.Sprintf("gives the id %d to both %q and %q", t.id, old.content, t.content)
	}
	if old := a.byContent[t.content]; old != nil && old.id != t.id {
		return fmt.Sprintf("gives %q both the id %d and %d", t.content, old.id, t.id)
	}
	return ""
}

// index builds the tries. All tokens and the normalizer must be known.
func (a *addedVocab) index(path string, ns normalizers) {
	for _, t := range a.byID {
		t.decoded = t.content
		if !t.normalized {
			a.plain.add(t.content, t.id)
			continue
		}
		p, err := ns.apply(piece{t.content, true, searchesOf(context.Background(), len(t.content))})
		if err != nil {
			panic(attempt.Failure{Err: invalid(path, "%q cannot be normalized: %v", t.content, err)})
		}
		if p.text == "" {
			panic(attempt.Failure{Err: invalid(path, "%q is normalized to nothing", t.content)})
		}
		if !a.normalized.add(p.text, t.id) {
			panic(attempt.Failure{Err: invalid(path, "%q and another added token have the same normalized form %q", t.content, p.text)})
		}
		t.decoded = p.text
		a.raw.add(t.content, t.id)
	}
}

// span is a byte range of a text.
type span struct{ lo, hi int }

// find scans text from left to right and calls between for the ranges between added tokens, and
// token for the tokens. Bytes inside the sorted, disjoint literal spans are never part of a match.
func (a *addedVocab) find(t *trie, text string, literal []span, between func(lo, hi int) error, token func(id int32)) error {
	if t.empty() {
		return between(0, len(text))
	}
	done := 0
	for i := 0; i < len(text); {
		for len(literal) > 0 && literal[0].hi <= i {
			literal = literal[1:]
		}
		end := len(text)
		if len(literal) > 0 {
			if literal[0].lo <= i {
				i = literal[0].hi
				continue
			}
			end = literal[0].lo
		}
		if !t.start[text[i]] {
			i++
			continue
		}
		id, n := t.longest(text[i:end])
		if n == 0 {
			i++
			continue
		}
		start, stop := i, i+n
		i = stop
		tok := a.byID[id]
		if tok.singleWord && (wordBefore(text[:start]) || wordAfter(text[stop:])) {
			continue
		}
		if tok.lstrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if tok.rstrip {
			stop = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
		}
		if done < start {
			if err := between(done, start); err != nil {
				return err
			}
		}
		token(id)
		done = stop
	}
	if done < len(text) {
		return between(done, len(text))
	}
	return nil
}

func wordBefore(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func wordAfter(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}
