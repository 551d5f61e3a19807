package batcher

const (
	// rateMillis is the shortest window of a rate.
	rateMillis = 1000
	// stuckMillis is the duration from which a running step counts as a rate of 0.
	stuckMillis = 10_000
)

// rate measures throughput from Ticks and completed steps, in windows of at least rateMillis. A
// window without rows stays open while a step runs, so that a step of several seconds counts over
// its whole duration.
type rate struct {
	since  int64 // milliseconds; start of the window
	rows   int64 // computed in the window, rejected drafts included
	tokens int64 // prompt tokens read and output tokens emitted in the window

	// perSecond is the smoothed rate of rows during work, 0 before the first. It does not fall when
	// the cluster is idle, because it estimates the speed of future work.
	perSecond int64
	// current is the rate of tokens in the last window, 0 when idle.
	current float64
}

func (r *rate) add(rows, tokens int) {
	r.rows += int64(rows)
	r.tokens += int64(tokens)
}

// tick closes the window when it is due. busy: a step is running.
func (r *rate) tick(now int64, busy bool) {
	elapsed := now - r.since
	if elapsed < rateMillis {
		return
	}
	if r.rows == 0 && busy {
		if elapsed >= stuckMillis {
			r.current = 0
		}
		return
	}
	r.current = float64(r.tokens) * 1000 / float64(elapsed)
	if r.rows > 0 {
		measured := r.rows * 1000 / elapsed
		if r.perSecond > 0 {
			measured = (3*r.perSecond + measured) / 4
		}
		r.perSecond = max(1, measured)
	}
	r.since, r.rows, r.tokens = now, 0, 0
}
