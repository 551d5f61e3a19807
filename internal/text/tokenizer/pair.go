package tokenizer

import (
	"context"
	"fmt"
)

// Encoding is one encoded text or pair of texts with the special tokens around them.
type Encoding struct {
	IDs   []int32
	Types []int32 // token type (segment) of each id
}

// Truncation selects the texts that EncodeTexts shortens, at their ends.
type Truncation uint8

const (
	LongestFirst Truncation = iota // the longer text until both are equal, then both
	OnlyFirst
	OnlySecond
)

// EncodeTexts encodes one text, or two as a pair (query and document), with the template that the
// model's files have for them. limit is the maximum number of ids including those of the template,
// 0: none. If the selected text cannot be shortened enough, the error names the limit. Other errors
// are those of TryEncode.
func (t *Tokenizer) EncodeTexts(ctx context.Context, texts [][]Part, limit int, cut Truncation) (Encoding, error) {
	if n := len(texts); n != 1 && n != 2 {
		return Encoding{}, fmt.Errorf("tokenizer: %d texts; a model reads one text or a pair", n)
	}
	var ids [2][]int32
	for i, parts := range texts {
		var err error
		if ids[i], err = t.TryEncode(ctx, parts, false); err != nil {
			return Encoding{}, err
		}
	}
	template := t.post.template(len(texts))
	if limit > 0 {
		room := limit
		for _, s := range template {
			room -= len(s.ids)
		}
		n1, n2, err := shorten(len(ids[0]), len(ids[1]), room, cut)
		if err != nil {
			return Encoding{}, fmt.Errorf("%w (the limit is %d tokens)", err, limit)
		}
		ids[0], ids[1] = ids[0][:n1], ids[1][:n2]
	}
	var e Encoding
	for _, s := range template {
		add := s.ids
		if s.text >= 0 {
			add = ids[s.text]
		}
		e.IDs = append(e.IDs, add...)
		for range add {
			e.Types = append(e.Types, s.kind)
		}
	}
	return e, nil
}

// shorten returns the lengths of two texts that fit together in room, like the tokenizers library.
func shorten(a, b, room int, cut Truncation) (int, int, error) {
	over := a + b - room
	switch {
	case over <= 0:
		return a, b, nil
	case room < 0:
		return 0, 0, fmt.Errorf("tokenizer: the special tokens of the model alone are over the limit")
	case cut == OnlyFirst && over < a:
		return a - over, b, nil
	case cut == OnlySecond && over < b:
		return a, b - over, nil
	case cut != LongestFirst:
		return 0, 0, fmt.Errorf("tokenizer: the text to shorten has no more than the %d tokens that must go", over)
	}
	short := min(a, b)
	long := short
	if short <= room {
		long = max(short, room-short)
	}
	if short+long > room {
		short, long = room/2, room/2+room%2
	}
	if a > b {
		short, long = long, short
	}
	return short, long, nil
}
