package tokenizer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// slowTokenizer has a cubic pattern, which is accepted at load. It needs minutes for each part of
// slowText.
func slowTokenizer(t *testing.T) *Tokenizer {
	t.Helper()
	tok, err := Parse(Files{Tokenizer: []byte(`{"model": {"vocab": {"a": 0, "<s>": 1, " ": 2, "#": 3}, "merges": []},
		"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+(a|b)\\w+(a|b)\\w+[#!]"}, "behavior": "Isolated"},
		"added_tokens": [{"id": 1, "content": "<s>", "special": true}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

const slowStretches = 30

var slowText = []Part{{Text: strings.Repeat(strings.Repeat("a", 4000)+" #<s>", slowStretches)}}

// TestSearchesShareABudget: all parts of a text, and all texts of a request, together take little
// more than the limit of one.
func TestSearchesShareABudget(t *testing.T) {
	tok := slowTokenizer(t)
	var short []Part
	for range slowStretches {
		short = append(short, Part{Text: slowText[0].Text[:len(slowText[0].Text)/slowStretches]})
	}
	for what, texts := range map[string][]Part{"one text": slowText, "many texts": short} {
		ctx, began := WithSearches(t.Context()), time.Now()
		for _, text := range texts {
			ids, err := tok.TryEncode(ctx, []Part{text}, false)
			if !errors.Is(err, ErrGaveUp) || ids != nil || len(err.Error()) > 300 {
				t.Errorf("%s: %d ids, %.400v", what, len(ids), err)
			}
		}
		took := time.Since(began)
		if took > slowStretches*searchLimit/2 {
			t.Errorf("%s: %v, as if each stretch had a budget", what, took)
		}
		t.Log(what, took)
	}
	if ids, err := tok.TryEncode(WithSearches(t.Context()), []Part{{Text: "aaa"}}, false); err != nil || len(ids) != 3 {
		t.Errorf("another request: %v, %v", ids, err)
	}
}

// TestSearchesEndWithTheRequest: after the client disconnects, at most one attempt of one search
// completes.
func TestSearchesEndWithTheRequest(t *testing.T) {
	tok := slowTokenizer(t)
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := tok.TryEncode(ctx, slowText, false)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrGaveUp) {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// TestNoIDsOfHalfASearch: a text whose searches time out gives an error and no ids. Encode allows
// more time for normal texts than any request.
func TestNoIDsOfHalfASearch(t *testing.T) {
	tok := slowTokenizer(t)
	late := &searches{ctx: t.Context(), left: 0, tries: searchTries}
	if ids, err := tok.encode(late, []Part{{Text: "aaa"}}, false); !errors.Is(err, ErrGaveUp) || ids != nil {
		t.Errorf("without time: %v, %v", ids, err)
	}
	if s := unlimited(); s.left < time.Hour || s.tries < 100*searchTries {
		t.Errorf("Encode has %v and %d tries", s.left, s.tries)
	}
	if ids := tok.Encode("aaa", false); len(ids) != 3 {
		t.Errorf("ids %v", ids)
	}
}
