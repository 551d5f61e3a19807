package options

import "context"

type trialRoundsKey struct{}

// WithTrialRounds returns a context for cluster.StartCoordinator that sets an internal option: the number of
// rounds in which the batcher tries each thread count for a kind of steps. Only measurements need it.
func WithTrialRounds(ctx context.Context, rounds int) context.Context {
	return context.WithValue(ctx, trialRoundsKey{}, rounds)
}

// TrialRounds returns the rounds of WithTrialRounds, or 0 for the batcher's default.
func TrialRounds(ctx context.Context) int {
	rounds, _ := ctx.Value(trialRoundsKey{}).(int)
	return rounds
}
