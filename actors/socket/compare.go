package socket

import (
	"fmt"

	"shoal/kvcache"
	"shoal/sampler"
)

// Compare opens sequence Seq, a prompt of Prompt tokens under the policy full, and
// for each of Policies a sequence Seq+1+i that shares the prompt: its tokens are read
// once, as chunks of Seq, with everything observed that any of the policies looks at.
// At the hand-over every policy chooses from that prompt and keeps its own rows; from
// then on the sequences are decoded like any others. The first token of all is the one
// that is drawn for Seq. Greedy; only a socket that is alone takes it.
//
// It is for measuring accuracy: reading a long prompt costs far more than choosing
// from it and decoding an answer.
type Compare struct {
	Epoch    uint32
	Seq      uint64
	Prompt   int
	Policies []string
	Reply    func(error)
}

// watching is the policy full with the needs of others.
type watching struct {
	kvcache.Full
	needs kvcache.Needs
}

// Needs implements kvcache.Policy.
func (w watching) Needs() kvcache.Needs { return w.needs }

func (e *epoch) compare(m *Compare) error {
	if len(e.place.Slices) != 1 {
		return fmt.Errorf("socket: policies are compared on one socket, not on %d", len(e.place.Slices))
	}
	if m.Prompt < 1 || m.Prompt >= e.config.MaxPositions {
		return fmt.Errorf("socket: comparing on a prompt of %d tokens: want 1 to %d", m.Prompt, e.config.MaxPositions-1)
	}
	open := func(id uint64, p kvcache.Policy) *sequence {
		q := &sequence{id: id, buddy: -1, prompt: m.Prompt, fresh: m.Prompt, policy: p, history: new(sampler.History)}
		q.params = sampler.Default()
		q.params.Temperature = 0
		return q
	}
	base := open(m.Seq, kvcache.Full{})
	var all watching
	for i, spec := range m.Policies {
		p, err := kvcache.Parse(spec)
		if err != nil {
			return err
		}
		if p.Identity() {
			return fmt.Errorf("socket: policy %s keeps every token: that is sequence %d itself", spec, m.Seq)
		}
		n := p.Needs()
		all.needs.Window, all.needs.PromptAttention = max(all.needs.Window, n.Window), all.needs.PromptAttention || n.PromptAttention
		base.forks = append(base.forks, open(m.Seq+1+uint64(i), p))
	}
	for _, q := range append(base.forks, base) {
		if e.seqs[q.id] != nil {
			return fmt.Errorf("socket: sequence %d is open already", q.id)
		}
	}
	cut := tensorSpan(e.place.Slices[0].KVHeads)
	if e.geometry.Units > 0 { // votes of latent attention are counted as they come, of each window once
		same := map[kvcache.Needs]*kvcache.Observation{} // policies that look at the same share what is seen
		for _, f := range base.forks {
			n := kvcache.Needs{Window: f.policy.Needs().Window, PromptAttention: f.policy.Needs().PromptAttention}
			if same[n] == nil && n != (kvcache.Needs{}) {
				o, err := kvcache.NewObservation(e.arena, e.geometry, cut, f.policy, m.Prompt)
				if err != nil {
					for _, f := range base.forks {
						f.seen.Release()
					}
					return err
				}
				same[n] = o
				base.looks = append(base.looks, o)
			}
			f.seen = same[n]
		}
	} else {
		var err error
		if base.seen, err = kvcache.NewObservation(e.arena, e.geometry, cut, all, m.Prompt); err != nil {
			return err
		}
	}
	base.part = kvcache.NewPrefill(e.arena, e.geometry, e.promptHeads(0))
	for _, q := range append(base.forks, base) {
		e.seqs[q.id] = q
	}
	return nil
}

// fork readies the sequences that share q's prompt for its hand-over.
func (e *epoch) fork(q *sequence) error {
	for _, f := range q.forks {
		f.part, f.own = q.part, kvcache.NewStore(e.arena, e.geometry, f.policy)
		if e.geometry.Units == 0 {
			f.seen = q.seen
		}
		if err := f.own.Open(f.prompt, f.prompt, noHeads); err != nil {
			return fmt.Errorf("socket: sequence %d: %w", f.id, err)
		}
	}
	return nil
}
