package network

import (
	"context"
	"time"
)

// Sample has counters of a running network since its start.
type Sample struct {
	Up, Down []int64 // bytes that passed the link of each host, from it and to it
	Packets  int64   // delivered
	Late     time.Duration
}

// Sample reads the counters.
func (n *Network) Sample(ctx context.Context) (s Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = n.do(ctx, func() {
		for i := range n.hosts {
			s.Up, s.Down = append(s.Up, n.fabric.up[i].Bytes), append(s.Down, n.fabric.down[i].Bytes)
		}
		s.Packets, s.Late = n.late.packets, n.late.sum
	})
	return s, err
}

// Busiest returns the most bytes that one direction of one host's link carried since an earlier sample.
func (s *Sample) Busiest(since Sample) (most int64) {
	for i := range s.Up {
		most = max(most, s.Up[i]-since.Up[i], s.Down[i]-since.Down[i])
	}
	return most
}

// MeanLate returns the average lateness of packets since an earlier sample.
func (s *Sample) MeanLate(since Sample) time.Duration {
	if s.Packets == since.Packets {
		return 0
	}
	return (s.Late - since.Late) / time.Duration(s.Packets-since.Packets)
}
