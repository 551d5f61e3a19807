package events

import (
	"github.com/shoal-llm/shoal/client/wire"
)

// keptSamples covers the last five minutes, one sample per SampleEvery.
const keptSamples = 300

// samples is a ring buffer.
type samples struct {
	ring []wire.Sample
	next uint64 // index of the next sample
}

func (s *samples) add(c *wire.ClusterState) {
	v := wire.Sample{Index: s.next, Epoch: c.Epoch, Running: c.Running, Waiting: c.Waiting, TokensPerSecond: c.TokensPerSecond,
		StepMillis: c.StepMillis, WireBytes: c.WireBytes,
		Nodes: map[string][4]int64{}}
	for _, q := range c.Sequences {
		v.KVBytes, v.KVFull = v.KVBytes+q.KVBytes, v.KVFull+q.KVFull
	}
	for _, n := range c.Nodes {
		v.Nodes[n.ID] = [4]int64{n.KVUsedBytes, n.KVPrefix, n.WeightBytes, n.RSSBytes}
	}
	if len(s.ring) < keptSamples {
		s.ring = append(s.ring, v)
	} else {
		s.ring[s.next%keptSamples] = v
	}
	s.next++
}

// from returns the samples starting at an index.
func (s *samples) from(index uint64) []wire.Sample {
	out := []wire.Sample{}
	if index > s.next { // of another coordinator
		index = 0
	}
	for i := max(index, s.next-uint64(len(s.ring))); i < s.next; i++ {
		out = append(out, s.ring[i%keptSamples])
	}
	return out
}
