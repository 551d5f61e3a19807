package layered

import "github.com/shoal-llm/shoal/internal/engine/kvcache"

// Streams are what a rank stores of a prompt between its layers. SwiftKV computes the keys and values of all later
// layers from the input of the first of them. So that input of all tokens stays until the end, and the rows that pass
// the later layers have a second stream.
type Streams struct {
	All  *Residual // rows of all tokens
	Kept *Residual // rows of the tokens from From on, or nil
	From int       // position of the first row that passes the later layers
}

// KeptRows returns the number of a prompt's last rows that pass SwiftKV's later layers: those whose queries the policy
// observes, and the last, whose logits may be requested. 0: the model has no such layers.
func KeptRows(g kvcache.Geometry, p *kvcache.Policy, prompt int) int {
	if g.Later == 0 {
		return 0
	}
	return prompt - p.SkippableTokens(prompt)
}

// keptPass returns the position where the first pass with kept rows begins.
func keptPass(first, pass, prompt, kept int) int { return first + (prompt-kept-first)/pass*pass }

// NewStreams opens the streams of a prompt with a number of kept rows. The first pass begins at position first.
// residual opens a stream of the tokens from a position on. After an error no stream is open.
func NewStreams(first, pass, prompt, kept int, residual func(first int) (*Residual, error)) (*Streams, error) {
	s := &Streams{From: prompt - kept}
	var err error
	if s.All, err = residual(first); err == nil && kept > 0 {
		s.Kept, err = residual(keptPass(first, pass, prompt, kept))
	}
	if err != nil {
		s.Release()
		return nil, err
	}
	return s, nil
}

// Lost returns the error that lost rows in a file, or nil.
func (s *Streams) Lost() error {
	if err := s.All.Lost(); err != nil {
		return err
	}
	return s.Kept.Lost()
}

// Release frees the streams. It may be called twice, or on nil.
func (s *Streams) Release() {
	if s != nil {
		s.All.Release()
		s.Kept.Release()
	}
}
