package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// floorLogprob replaces -Inf, which JSON does not have (vLLM's value).
const floorLogprob = -9999

func finite(x float32) float32 {
	if !(x > floorLogprob) || x > 0 { // NaN too
		if x > 0 {
			return 0
		}
		return floorLogprob
	}
	return x
}

// tokenText spells a token in logprobs. Tokens that are not whole runes read
// "bytes:\xe2\x82", as OpenAI writes them, so that different ones differ.
func (s *API) tokenText(id int32, asID bool) string {
	if asID {
		return "token_id:" + strconv.Itoa(int(id))
	}
	b := s.tokenBytes(id)
	if utf8.Valid(b) {
		return string(b)
	}
	var t strings.Builder
	t.WriteString("bytes:")
	for _, c := range b {
		fmt.Fprintf(&t, `\x%02x`, c)
	}
	return t.String()
}

func (s *API) tokenBytes(id int32) []byte {
	if s.Tokenizer.IsSpecial(id) {
		return []byte(s.Tokenizer.Token(id))
	}
	return s.Tokenizer.TokenBytes(id)
}

// byteList is written as a list of numbers.
type byteList []byte

func (b byteList) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, c := range b {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(c), 10)
	}
	return append(out, ']'), nil
}

// Chat: one entry per token of the output.

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
	Refusal *string       `json:"refusal"`
}

type chatLogprob struct {
	chatToken
	Top []chatToken `json:"top_logprobs"`
}

type chatToken struct {
	Token   string   `json:"token"`
	Logprob float32  `json:"logprob"`
	Bytes   byteList `json:"bytes"`
}

func (s *API) chatLogprobs(g *generate.Request, tokens []generate.TokenRecord) *chatLogprobs {
	if g.Sampling.Logprobs < 0 {
		return nil
	}
	entry := func(id int32, logprob float32) chatToken {
		return chatToken{s.tokenText(id, g.TokenIDs), finite(logprob), s.tokenBytes(id)}
	}
	out := &chatLogprobs{Content: make([]chatLogprob, 0, len(tokens))}
	for _, t := range tokens {
		l := chatLogprob{chatToken: entry(t.Id, t.Logprob), Top: make([]chatToken, 0, len(t.Top))}
		for _, top := range t.Top[:min(len(t.Top), g.Sampling.Logprobs)] {
			l.Top = append(l.Top, entry(top.Token, top.Logprob))
		}
		out.Content = append(out.Content, l)
	}
	return out
}

// Completions: four parallel lists.

type completionLogprobs struct {
	Tokens        []string     `json:"tokens"`
	TokenLogprobs []*float32   `json:"token_logprobs"`
	TopLogprobs   []*topTokens `json:"top_logprobs"`
	TextOffset    []int        `json:"text_offset"`
}

func (s *API) completionLogprobs(g *generate.Request, tokens []generate.TokenRecord) *completionLogprobs {
	if g.Sampling.Logprobs < 0 {
		return nil
	}
	n := len(tokens)
	out := &completionLogprobs{make([]string, n), make([]*float32, n), make([]*topTokens, n), make([]int, n)}
	for i, t := range tokens {
		out.Tokens[i], out.TextOffset[i] = s.tokenText(t.Id, g.TokenIDs), t.Offset
		if t.First {
			continue // null: nothing comes before it
		}
		lp := finite(t.Logprob)
		out.TokenLogprobs[i] = &lp
		top := &topTokens{}
		for _, x := range t.Top[:min(len(t.Top), g.Sampling.Logprobs)] {
			top.add(s.tokenText(x.Token, g.TokenIDs), finite(x.Logprob))
		}
		top.add(out.Tokens[i], lp) // lm-eval looks for the token itself among the best
		out.TopLogprobs[i] = top
	}
	return out
}

// topTokens is an object in order of insertion (best first). Of tokens with the
// same spelling the better one stays.
type topTokens struct {
	names    []string
	logprobs []float32
}

func (t *topTokens) add(name string, logprob float32) {
	for i, n := range t.names {
		if n == name {
			t.logprobs[i] = max(t.logprobs[i], logprob)
			return
		}
	}
	t.names, t.logprobs = append(t.names, name), append(t.logprobs, logprob)
}

func (t *topTokens) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, n := range t.names {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := jsonbody.Marshal(n)
		if err != nil {
			return nil, err
		}
		b.Write(bytes.TrimSpace(name))
		b.WriteByte(':')
		v, err := json.Marshal(t.logprobs[i])
		if err != nil {
			return nil, err
		}
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
