package options

import "context"

// ThreadTrials are measurements of steps with different thread counts. Only benchmarks need them.
type ThreadTrials struct {
	Rounds int // that the batcher takes for a kind of steps; 0: its default

	// Times is set when the coordinator has started. It returns the microseconds of a pass of each plan, by
	// thread shift, for steps like the newest, or nil if the newest step is not decode-only.
	Times func(context.Context) ([][]float64, error)
}

type threadTrialsKey struct{}

// WithThreadTrials returns a context for cluster.StartCoordinator with an internal option.
func WithThreadTrials(ctx context.Context, t *ThreadTrials) context.Context {
	return context.WithValue(ctx, threadTrialsKey{}, t)
}

// ThreadTrialsOf returns the value of WithThreadTrials, or an empty one.
func ThreadTrialsOf(ctx context.Context) *ThreadTrials {
	if t, ok := ctx.Value(threadTrialsKey{}).(*ThreadTrials); ok {
		return t
	}
	return &ThreadTrials{}
}
