package step

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Times are the times of a step's stages on this socket. The rest of the step's duration is messages
// between actors and time in queues.
type Times struct {
	Begin       time.Duration // checks, cache blocks, embedding
	Projection  time.Duration // query, key, value and output projections, with their norm
	Attention   time.Duration // RoPE, cache writes, attention
	Observation time.Duration // during prefill: recording of window queries, attention sums for the policies that use them
	FFN         time.Duration // norm, gate, up, SiLU, down
	Head        time.Duration // norm, logits, sampling
	Clustering  time.Duration // of prompts, in pieces before their last chunk
	Votes       time.Duration // after the last chunk of a prompt: attention of the observation window
	Selection   time.Duration // after Votes: pooling, top-K
	Shipping    time.Duration // after Selection: rows sent to the owner, blocks freed
	Wait        time.Duration // for collectives
	Own         time.Duration // portion of the above that other sockets may not have: attention of own sequences, their indexes

	Threads workers.Spent // of the pool during the step

	Experts int // number of experts whose weights were read, all layers together
}

// Compression returns the cost of the policy for a prompt, including observation.
func (s Times) Compression() time.Duration {
	return s.Observation + s.Clustering + s.Votes + s.Selection + s.Shipping
}

// Add adds the times of another step.
func (s *Times) Add(o Times) {
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

func (s Times) with(b *layer.Batch) Times {
	s.Projection += b.Spent[layer.Projections]
	s.FFN += b.Spent[layer.FFN]
	s.Attention += b.Spent[layer.Attention] - b.Observed
	s.Observation += b.Observed
	s.Wait += b.Wait
	s.Own += b.Own()
	s.Experts += b.ExpertsRead
	return s
}

// collect adds the times of a batch to those of the step, before the batch gets other rows.
func (s *Step) collect(b *layer.Batch) {
	s.spent, s.compute = s.spent.with(b), s.compute+b.Compute
	b.ClearTimes()
}

// passed ends a pass: it collects its results and times.
func (s *Step) passed(b *layer.Batch) {
	s.pass++
	s.spent, s.compute = s.spent.with(b), s.compute+b.Compute
	if s.sampled == nil {
		s.sampled = s.results.order
	} else {
		for i, r := range s.results.order { // in the order of the rows, as in each pass
			s.sampled[i].Drawn = append(s.sampled[i].Drawn, r.Drawn...)
		}
	}
	s.results = results{}
}

func threadTime(s workers.Spent) *proto.ThreadTime {
	return &proto.ThreadTime{Runs: s.Runs, Wall: int64(s.Wall), Work: int64(s.Work), Late: int64(s.Late), Absent: int64(s.Absent),
		Uneven: int64(s.Uneven), End: int64(s.End), Again: s.Again}
}

// late returns the time that this rank has waited for each other rank in the step, in microseconds. Of the
// waits of micro-batches, only the time without computation counts.
func (s *Step) late() []uint32 {
	now, counts := s.epoch.Group.Lateness(), 1.0
	if s.overlapped > 0 {
		counts = min(1, float64(s.exposed)/float64(s.overlapped))
	}
	out := make([]uint32, len(now))
	for i := range now {
		if i < len(s.lateBefore) {
			out[i] = uint32(counts * float64((now[i] - s.lateBefore[i]).Microseconds()))
		}
	}
	return out
}
