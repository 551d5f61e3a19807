package socket

import (
	"fmt"

	"shoal/kvcache"
	"shoal/proto"
	"shoal/sampler"
)

// sequence is what a socket knows of one request: on every socket its heads'
// part of the prompt while that is read; on the owner the cache that decode
// reads, and the sampling state.
type sequence struct {
	id     uint64
	owner  int
	buddy  int    // rank with a replica, -1: none
	prompt int    // tokens that prefill reads
	fresh  int    // of these, how many the request came with; later ones were sampled
	read   int    // tokens whose step is committed
	step   uint64 // the last one that had rows of it
	handed bool   // the owner has the whole cache, or will have it when the step ends
	policy *kvcache.Policy

	part *kvcache.Store       // own KV heads of the prompt; nil when this rank has none, or after the hand-over
	seen *kvcache.Observation // what the policy will look at; nil: nothing
	own  *kvcache.Store       // the owner's, from the last chunk on
	copy *kvcache.Store       // the buddy's replica of it

	params  sampler.Params
	history *sampler.History
}

// note records a token in the sampling history.
func (s *sequence) note(token int32, position int) {
	if position < s.fresh {
		s.history.Add([]int32{token})
		return
	}
	s.history.AddOutput(token)
}

func (s *sequence) release() {
	s.releasePart()
	if s.own != nil {
		s.own.Release()
		s.own = nil
	}
	if s.copy != nil {
		s.copy.Release()
		s.copy = nil
	}
}

func (s *sequence) releasePart() {
	if s.part != nil {
		s.part.Release()
		s.part = nil
	}
	s.seen.Release()
	s.seen = nil
}

// open begins a sequence whose prompt is to be read.
func (e *epoch) open(o *proto.Open) (*sequence, error) {
	s, err := e.newSequence(o)
	if err != nil {
		return nil, err
	}
	if heads := e.promptHeads(s.owner); heads.Len() > 0 {
		s.part = kvcache.NewPrefill(e.arena, e.geometry, heads)
		if s.seen, err = kvcache.NewObservation(e.arena, e.geometry, tensorSpan(e.place.Slices[e.rank].KVHeads), s.policy.Needs, s.prompt); err != nil {
			return nil, fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
		}
	}
	return s, nil
}

// newSequence is what every socket notes of a sequence.
func (e *epoch) newSequence(o *proto.Open) (*sequence, error) {
	policy, err := e.parse(o.Policy)
	if err != nil {
		return nil, fmt.Errorf("socket: sequence %d: %w", o.Seq, err)
	}
	s := &sequence{id: o.Seq, owner: int(o.Owner), buddy: int(o.Buddy) - 1, prompt: int(o.PromptTokens), policy: policy}
	s.fresh = s.prompt - int(o.SampledBefore)
	s.params = samplingOf(o.Sampling) // all ranks: what a row sends to its owner depends on it
	if s.owner == e.rank {
		s.history = new(sampler.History)
	}
	return s, nil
}

// samplingOf turns the wire form into parameters.
func samplingOf(m *proto.Sampling) sampler.Params {
	p := sampler.Params{
		Temperature: m.GetTemperature(), TopP: m.GetTopP(), MinP: m.GetMinP(), TopK: int(m.GetTopK()),
		RepetitionPenalty: m.GetRepetitionPenalty(), PresencePenalty: m.GetPresencePenalty(), FrequencyPenalty: m.GetFrequencyPenalty(),
		Seed: m.GetSeed(), Logprobs: int(m.GetLogprobs()), MinTokens: int(m.GetMinTokens()),
	}
	for _, b := range m.GetLogitBias() {
		p.LogitBias = append(p.LogitBias, sampler.Bias{Token: int32(b.Token), Value: b.Value})
	}
	for _, t := range m.GetStop() {
		p.Stop = append(p.Stop, int32(t))
	}
	return p
}

// SamplingMessage is the wire form of sampling parameters.
func SamplingMessage(p *sampler.Params) *proto.Sampling {
	m := &proto.Sampling{
		Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: int32(p.TopK),
		RepetitionPenalty: p.RepetitionPenalty, PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty,
		Seed: p.Seed, Logprobs: int32(p.Logprobs), MinTokens: int32(p.MinTokens),
	}
	for _, b := range p.LogitBias {
		m.LogitBias = append(m.LogitBias, &proto.Bias{Token: uint32(b.Token), Value: b.Value})
	}
	for _, t := range p.Stop {
		m.Stop = append(m.Stop, uint32(t))
	}
	return m
}
