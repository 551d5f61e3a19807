package socket

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Stages is where the time of a step went on this socket. What the sum lacks
// to the step's duration is messages between actors and waiting for their turn.
type Stages struct {
	Begin       time.Duration // checks, cache blocks, embedding
	Projection  time.Duration // query, key, value and output projections, with their norm
	Attention   time.Duration // RoPE, cache writes, attention
	Observation time.Duration // while a prompt is read: window queries noted, attention sums of policies that ask
	FFN         time.Duration // norm, gate, up, SiLU, down
	Head        time.Duration // norm, logits, sampling
	Clustering  time.Duration // of prompts, in pieces before their last chunk
	Votes       time.Duration // after the last chunk of a prompt: attention of the observation window
	Selection   time.Duration // then: pooling, top-K
	Shipping    time.Duration // then: kept rows to the owner, blocks given back
	Wait        time.Duration // for collectives
	Own         time.Duration // of these, what other sockets need not have: attention of own sequences, their indexes

	Threads tensor.Spent // of the pool, meanwhile

	Experts int // whose weights were read, of all layers together
}

// Compression is what the policy costs a prompt, the observation included.
func (s Stages) Compression() time.Duration {
	return s.Observation + s.Clustering + s.Votes + s.Selection + s.Shipping
}

// Add sums stages of several steps.
func (s *Stages) Add(o Stages) {
	s.Begin += o.Begin
	s.Projection += o.Projection
	s.Attention += o.Attention
	s.Observation += o.Observation
	s.FFN += o.FFN
	s.Head += o.Head
	s.Clustering += o.Clustering
	s.Votes += o.Votes
	s.Selection += o.Selection
	s.Shipping += o.Shipping
	s.Wait += o.Wait
	s.Own += o.Own
	s.Threads = s.Threads.Add(o.Threads)
	s.Experts += o.Experts
}

func (s Stages) with(b *layer.Batch) Stages {
	s.Projection += b.Spent[layer.Projections]
	s.FFN += b.Spent[layer.FFN]
	s.Attention += b.Spent[layer.Attention] - b.Observed
	s.Observation += b.Observed
	s.Wait += b.Wait
	s.Own += b.Own()
	s.Experts += b.ExpertsRead
	return s
}

// passed ends a pass: what it has drawn and where its time went.
func (s *step) passed(b *layer.Batch) {
	s.pass++
	s.spent, s.compute = s.spent.with(b), s.compute+b.Compute
	if s.sampled == nil {
		s.sampled = s.results.order
	} else {
		for i, r := range s.results.order { // in the order of the rows, which is that of each pass
			s.sampled[i].Drawn = append(s.sampled[i].Drawn, r.Drawn...)
		}
	}
	s.results = results{}
}

func threadTime(s tensor.Spent) *proto.ThreadTime {
	return &proto.ThreadTime{Runs: s.Runs, Wall: int64(s.Wall), Work: int64(s.Work), Late: int64(s.Late), Absent: int64(s.Absent), Uneven: int64(s.Uneven), End: int64(s.End), Again: s.Again}
}

// micros is what was added to before.
func micros(now, before []time.Duration) []uint32 {
	out := make([]uint32, len(now))
	for i := range now {
		if i < len(before) {
			out[i] = uint32((now[i] - before[i]).Microseconds())
		}
	}
	return out
}
