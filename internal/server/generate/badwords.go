package generate

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// badWordTokens is the largest number of tokens in all spellings of bad_words: the parameters of
// every sequence travel in one step when an epoch begins.
const badWordTokens = 4096

// parseMasks reads allowed_token_ids and bad_words, as in vLLM.
func (s *Service) parseMasks(ctx context.Context, f *jsonbody.Object, p *Params) {
	if v := f.Get("allowed_token_ids"); v != nil {
		ids, problem := jsonbody.ParseIDs(v, s.VocabSize, s.VocabSize)
		if problem == "" && len(ids) == 0 {
			problem = "must not be empty"
		}
		if problem != "" {
			f.Fail(apierr.Invalid("allowed_token_ids", "'allowed_token_ids' %s.", problem))
			return
		}
		p.Sampling.Allowed = make([]uint64, slices.Max(ids)/64+1)
		for _, t := range ids {
			p.Sampling.Allowed[t/64] |= 1 << (t % 64)
		}
	}
	v := f.Get("bad_words")
	if v == nil || f.Err != nil {
		return
	}
	list := f.Table.Of("bad_words")
	longest := list.Items.MaxLen
	if v[0] != '[' {
		f.Fail(apierr.Invalid("bad_words", "'bad_words' must be a list of up to %d strings.", list.MaxLen))
		return
	}
	ctx, tokens := tokenizer.WithSearches(ctx), 0
	word := func(_ int, raw json.RawMessage) *apierr.Error {
		var word string
		if jsonbody.Unmarshal(raw, &word) != nil || jsonbody.IsNull(raw) {
			return apierr.Invalid("bad_words", "'bad_words' must hold strings.")
		}
		if solid := strings.TrimLeft(word, " \t\r\n"); solid != "" {
			word = solid
		}
		if word == "" || len(word) > longest {
			return apierr.Invalid("bad_words", "each of 'bad_words' must have 1 to %d bytes, not counting white space before a word.", longest)
		}
		spellings, e := s.spellings(ctx, word)
		if e != nil {
			return e
		}
		var before []int32
		for _, ids := range spellings {
			if len(ids) == 0 || slices.Equal(ids, before) {
				continue
			}
			if tokens += len(ids); tokens > badWordTokens {
				return apierr.Invalid("bad_words", "'bad_words' come to more than %d tokens.", badWordTokens)
			}
			p.Sampling.BadWords, before = append(p.Sampling.BadWords, ids), ids
		}
		return nil
	}
	f.Fail(jsonbody.Elements("bad_words", "strings", v, list.MaxLen, word))
}

// spellings returns the tokens of a bad word where a text begins with it, and within a text: after a
// space, or, if the word is itself white space, after a letter.
func (s *Service) spellings(ctx context.Context, word string) (list [][]int32, e *apierr.Error) {
	tokens := func(text string) (ids []int32) {
		if e == nil {
			ids, e = s.Encode(ctx, []engine.Segment{{Text: text}}, false, "bad_words")
		}
		return ids
	}
	if strings.Trim(word, " \t\r\n") != "" {
		return [][]int32{tokens(word), tokens(" " + word)}, e
	}
	const letter = "x"
	list = append(list, tokens(word))
	first, both := tokens(letter), tokens(letter+word)
	if n := len(first); len(both) > n && slices.Equal(both[:n], first) {
		list = append(list, both[n:])
	}
	return list, e
}

// checkMasks refuses settings that by themselves leave no token to draw. If that depends on the
// text or on a grammar, the sequence ends there with the code no_allowed_token.
func (p *Params) checkMasks() *apierr.Error {
	sp := &p.Sampling
	if sp.Allowed == nil {
		return nil
	}
	left := slices.Clone(sp.Allowed)
	ban := func(token int32) {
		if w := int(token) / 64; w < len(left) {
			left[w] &^= 1 << (token % 64)
		}
	}
	for _, word := range sp.BadWords {
		if len(word) == 1 {
			ban(word[0])
		}
	}
	if sp.MinTokens > 0 && sp.Grammar == nil {
		for _, token := range sp.Stop {
			ban(token)
		}
	}
	if slices.ContainsFunc(left, func(w uint64) bool { return w != 0 }) {
		return nil
	}
	return apierr.InvalidCode("allowed_token_ids", "no_allowed_token",
		"'allowed_token_ids' leaves no token to draw: 'bad_words' or 'min_tokens' ban every one of them.")
}
