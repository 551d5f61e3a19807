package card

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
)

// Sequence collects operations, and puts them into the card's stream together. Operations that repeat
// become a graph, which one call of the driver starts. An operation is a comparable struct; equal ones
// have the same kernels and arguments. Kernels read from memory the values that change from step to
// step.
type Sequence struct {
	card  *Card
	ops   []launch.Operation
	known []*repeated // the latest first
}

// repeated is operations that were put into the stream before.
type repeated struct {
	ops   []launch.Operation
	graph *cuda.Graph // nil until they come again
}

// maxRepeated bounds the sequences that are known, and so the memory of their graphs: about 0.3 MB each.
const maxRepeated = 32

// Sequence makes an empty sequence.
func (c *Card) Sequence() *Sequence { return &Sequence{card: c} }

// Do adds an operation.
func (s *Sequence) Do(o launch.Operation) { s.ops = append(s.ops, o) }

// Start puts the operations into the stream. It is called before other work that comes after them.
func (s *Sequence) Start() {
	if len(s.ops) == 0 {
		return
	}
	if r := s.find(); r == nil {
		s.run(s.card.Stream)
		s.remember()
	} else {
		if r.graph == nil {
			var err error
			r.graph, err = s.card.recorder.Record(func() error { s.run(s.card.recorder); return nil })
			s.card.Must(err)
		}
		s.card.Must(r.graph.Launch(s.card.Stream))
	}
	clear(s.ops)
	s.ops = s.ops[:0]
}

func (s *Sequence) run(to *cuda.Stream) {
	for _, o := range s.ops {
		s.card.do(to, o)
	}
}

// find returns the known sequence with the same operations, and makes it the latest.
func (s *Sequence) find() *repeated {
	i := slices.IndexFunc(s.known, func(r *repeated) bool { return slices.Equal(r.ops, s.ops) })
	if i < 0 {
		return nil
	}
	r := s.known[i]
	copy(s.known[1:i+1], s.known[:i])
	s.known[0] = r
	return r
}

// remember adds the operations to the known ones, and drops the least recently used ones.
func (s *Sequence) remember() {
	if len(s.known) == maxRepeated {
		s.forget(s.known[maxRepeated-1:])
		s.known = s.known[:maxRepeated-1]
	}
	s.known = slices.Insert(s.known, 0, &repeated{ops: slices.Clone(s.ops)})
}

func (s *Sequence) forget(all []*repeated) {
	waited := false
	for _, r := range all {
		if r.graph == nil {
			continue
		}
		if !waited {
			s.card.Wait() // it may be in flight
			waited = true
		}
		s.card.Must(r.graph.Close())
	}
}

// Close frees the graphs.
func (s *Sequence) Close() {
	s.forget(s.known)
	s.ops, s.known = nil, nil
}
