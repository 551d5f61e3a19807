package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestStreamIsDecode: for every tokenizer and any ids, the results of a stream are whole characters
// and join to Decode.
func TestStreamIsDecode(t *testing.T) {
	for _, name := range hfNames(t) {
		t.Run(name, func(t *testing.T) {
			tok := loadHF(t, name)
			bytes := []int32{}
			for b := range 256 {
				if id := tok.model.(*bpe).bytes[b]; id >= 0 {
					bytes = append(bytes, id)
				}
			}
			id := rapid.Int32Range(-1, int32(tok.VocabSize()))
			if len(bytes) > 0 {
				id = rapid.OneOf(id, rapid.SampledFrom(bytes))
			}
			rapid.Check(t, func(t *rapid.T) {
				ids := rapid.SliceOfN(id, 0, 30).Draw(t, "ids")
				skip := rapid.Bool().Draw(t, "skip")
				s := tok.NewStream(skip)
				for range 2 { // a flushed stream can be reused
					var got strings.Builder
					for _, id := range ids {
						part := s.Push(id)
						if !utf8.ValidString(part) {
							t.Fatalf("Push returned half a character: %q", part)
						}
						got.WriteString(part)
					}
					got.WriteString(s.Flush())
					if want := tok.Decode(ids, skip); got.String() != want {
						t.Fatalf("stream %q, Decode %q", got.String(), want)
					}
				}
			})
		})
	}
}

// TestStreamOfText: encoded text is returned in whole characters, no later than the token that
// completes them.
func TestStreamOfText(t *testing.T) {
	text := "Привет 🚀 日本語 ✅ naïve 👩‍👩‍👧‍👦"
	for _, name := range []string{"llama", "fry", "deepseek_v3", "spm_llama2", "spm_gemma", "spm_first"} {
		tok := loadHF(t, name)
		s, got := tok.NewStream(true), ""
		ids := tok.Encode(text, true)
		for i, id := range ids {
			got += s.Push(id)
			want := tok.Decode(ids[:i+1], true)
			if want = strings.TrimRight(want, "\uFFFD"); got != want {
				t.Fatalf("%s: after %d tokens got %q, want %q", name, i+1, got, want)
			}
		}
		if got += s.Flush(); got != text {
			t.Errorf("%s: %q, want %q", name, got, text)
		}
	}
}

// TestBrokenByteRuns covers the difference from the library, which replaces a whole run by one
// U+FFFD per byte and so could not stream it.
func TestBrokenByteRuns(t *testing.T) {
	tok := loadHF(t, "spm_llama2")
	run := func(s string) (ids []int32) {
		for i := range len(s) {
			ids = append(ids, tok.model.(*bpe).bytes[s[i]])
		}
		return ids
	}
	for in, want := range map[string]string{
		"日\xe6\x97":     "日\uFFFD\uFFFD",
		"\xff日\xff":     "\uFFFD日\uFFFD",
		"\xe6\x97":      "\uFFFD\uFFFD",
		"\xf0\x9f\x9aé": "\uFFFD\uFFFD\uFFFDé",
	} {
		if got := tok.Decode(run(in), false); got != want {
			t.Errorf("Decode(% x) = %q, want %q", in, got, want)
		}
	}
	s := tok.NewStream(false)
	got := ""
	for _, id := range run("日\xe6\x97") {
		got += s.Push(id)
	}
	if got != "日" {
		t.Errorf("stream holds back more than the incomplete character: %q", got)
	}
	if rest := s.Flush(); rest != "\uFFFD\uFFFD" {
		t.Errorf("Flush = %q", rest)
	}
}

// TestByteLevelTail: an incomplete tail becomes one U+FFFD.
func TestByteLevelTail(t *testing.T) {
	tok := mustLoad(t, "llama")
	ids := tok.EncodeLiteral("x🚀")
	ids = ids[:len(ids)-1]
	s := tok.NewStream(true)
	got := ""
	for _, id := range ids {
		got += s.Push(id)
	}
	if got != "x" {
		t.Errorf("pushed %q, want x", got)
	}
	if rest := s.Flush(); rest != "\uFFFD" {
		t.Errorf("Flush = %q, want one U+FFFD", rest)
	}
}
