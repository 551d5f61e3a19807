// Package rate measures the throughput of a scheduler.
package rate

const (
	// rateMillis is the shortest window of a rate.
	rateMillis = 1000
	// stuckMillis is the duration from which a running step counts as a rate of 0.
	stuckMillis = 10_000
)

// Rate measures throughput from Ticks and completed steps, in windows of at least rateMillis. A
// window without rows stays open while a step runs, so that a step of several seconds counts over
// its whole duration.
type Rate struct {
	since  int64 // milliseconds; start of the window
	rows   int64 // computed in the window, rejected drafts included
	tokens int64 // prompt tokens read and output tokens emitted in the window

	// PerSecond is the smoothed rate of rows during work, 0 before the first. It does not fall when
	// the cluster is idle, because it estimates the speed of future work.
	PerSecond int64
	// Current is the rate of tokens in the last window, 0 when idle.
	Current float64
}

func (r *Rate) Add(rows, tokens int) {
	r.rows += int64(rows)
	r.tokens += int64(tokens)
}

// Tick closes the window when it is due. busy: a step is running.
func (r *Rate) Tick(now int64, busy bool) {
	elapsed := now - r.since
	if elapsed < rateMillis {
		return
	}
	if r.rows == 0 && busy {
		if elapsed >= stuckMillis {
			r.Current = 0
		}
		return
	}
	r.Current = float64(r.tokens) * 1000 / float64(elapsed)
	if r.rows > 0 {
		measured := r.rows * 1000 / elapsed
		if r.PerSecond > 0 {
			measured = (3*r.PerSecond + measured) / 4
		}
		r.PerSecond = max(1, measured)
	}
	r.since, r.rows, r.tokens = now, 0, 0
}
