package plan

import (
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// EncodeSampling returns the wire form of sampling parameters.
func EncodeSampling(p *sampler.Params) *proto.Sampling {
	m := &proto.Sampling{
		Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: int32(p.TopK),
		RepetitionPenalty: p.RepetitionPenalty, PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty,
		Seed: p.Seed, Logprobs: int32(p.Logprobs), MinTokens: int32(p.MinTokens),
	}
	for _, b := range p.LogitBias {
		m.LogitBias = append(m.LogitBias, &proto.Bias{Token: uint32(b.Token), Value: b.Value})
	}
	m.Allowed = p.Allowed
	for _, w := range p.BadWords {
		m.BadWords = append(m.BadWords, &proto.Word{Tokens: convert[uint32](w)})
	}
	m.Stop, m.Trace = convert[uint32](p.Stop), convert[uint32](p.Trace)
	if g := p.Grammar; g != nil {
		m.Grammar = &proto.Grammar{Kind: g.Kind, Text: g.Text, Whitespace: g.Whitespace, Compact: g.Compact,
			AnyOrder: g.AnyOrder, Open: g.Open, Thought: g.Thought}
	}
	return m
}

// DecodeSampling reads the wire form of sampling parameters. It does not check them.
func DecodeSampling(m *proto.Sampling) sampler.Params {
	p := sampler.Params{
		Temperature: m.GetTemperature(), TopP: m.GetTopP(), MinP: m.GetMinP(), TopK: int(m.GetTopK()),
		RepetitionPenalty: m.GetRepetitionPenalty(), PresencePenalty: m.GetPresencePenalty(), FrequencyPenalty: m.GetFrequencyPenalty(),
		Seed: m.GetSeed(), Logprobs: int(m.GetLogprobs()), MinTokens: int(m.GetMinTokens()),
	}
	for _, b := range m.GetLogitBias() {
		p.LogitBias = append(p.LogitBias, sampler.Bias{Token: int32(b.GetToken()), Value: b.GetValue()})
	}
	p.Allowed = m.GetAllowed()
	for _, w := range m.GetBadWords() {
		p.BadWords = append(p.BadWords, convert[int32](w.GetTokens()))
	}
	p.Stop, p.Trace = convert[int32](m.GetStop()), convert[int32](m.GetTrace())
	if g := m.GetGrammar(); g != nil {
		p.Grammar = &grammar.Spec{Kind: g.Kind, Text: g.Text, Whitespace: g.Whitespace, Compact: g.Compact,
			AnyOrder: g.AnyOrder, Open: g.Open, Thought: g.Thought}
	}
	return p
}
