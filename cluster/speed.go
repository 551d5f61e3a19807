package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// measuredRead is the rate at which a node's threads read memory, in bytes a second, since
// decode reads every weight once a token; 0: it could not be measured.
func measuredRead(pool *tensor.Pool) float64 {
	rate, err := tensor.MeasureReadBandwidth(pool, speedBytes, speedTime)
	if err != nil {
		return 0
	}
	return rate * 1e9
}

const (
	speedBytes = 128 << 20 // several times the last-level cache of an ordinary machine
	speedTime  = 60 * time.Millisecond
)

// shareOf is a node's share of the work when nobody asked for one: the rate at which it
// reads, in units of 10 GB/s and rounded to quarters, so that noise does not cut equal
// machines unevenly; --share uses the same unit loosely: only the proportions matter.
func shareOf(read float64) float64 {
	if read <= 0 {
		return 1
	}
	return max(0.25, math.Round(read/shareUnit*4)/4)
}

const shareUnit = 10e9 // bytes a second

// measuredSyncs are what the planner needs to know of this machine's collectives: ranks of
// this process exchange what a decode step does over the node's own server, or the external
// one. Zero where that fails, and the planner guesses.
func measuredSyncs(ctx context.Context, s *natsbus.Server, log *slog.Logger) (out topology.Syncs) {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	two, err := measuredSync(ctx, s, 2)
	if err == nil {
		out.Four, err = measuredSync(ctx, s, 4)
	}
	if err != nil {
		log.Info("collectives could not be timed; the planner guesses what they cost", "error", err)
		return topology.Syncs{}
	}
	out.Two = two
	return out
}

const (
	syncLimit  = 3 * time.Second
	syncWarm   = 8
	syncRounds = 41
	syncFloats = 256 // of one rank, a decode row's part
)

// measuredSync is the median time of a small all-gather among so many ranks, in seconds.
func measuredSync(ctx context.Context, s *natsbus.Server, ranks int) (float64, error) {
	servers := slices.Repeat([]*natsbus.Server{s}, ranks)
	groups, stop, err := natsbus.Ranks(ctx, servers, fmt.Sprintf("start-%s-%d", s.Name(), ranks))
	defer stop()
	if err != nil {
		return 0, err
	}
	mine, recv, done := make([]float32, syncFloats), make([][][]float32, ranks), make(chan error, ranks)
	for r := range recv {
		for range ranks {
			recv[r] = append(recv[r], make([]float32, syncFloats))
		}
	}
	var took []time.Duration
	for i := range syncWarm + syncRounds {
		began := time.Now()
		for r, g := range groups {
			g.AllGather(collective.OpID(i+1), mine, recv[r], func(err error) { done <- err })
		}
		for range groups {
			select {
			case err := <-done:
				if err != nil {
					return 0, err
				}
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		if i >= syncWarm {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	return took[len(took)/2].Seconds(), nil
}
