package bench

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Threads divides the time of the compute threads in one step, or one prompt, by use. Solo is the
// caller's time between Runs. The other parts are fractions of all threads' time within Runs, by
// cause, and sum to 1 (tensor.Spent).
type Threads struct {
	Runs   float64 `json:"runs"`    // per step
	Run    float64 `json:"run_us"`  // average duration of a Run
	Solo   float64 `json:"solo_us"` // per step: one thread computes, the others wait
	Work   float64 `json:"work"`
	Late   float64 `json:"late"`   // until a thread's first task
	Absent float64 `json:"absent"` // threads that arrived when no task was left
	Uneven float64 `json:"uneven"` // from a thread's last task to the last task of all
	End    float64 `json:"end"`    // until the caller continued
	Again  float64 `json:"again"`  // tasks of products per step that were repeated because their thread was late
}

// threadsOf converts the times that were spent in a number of steps with a total compute time.
func threadsOf(s workers.Spent, steps int, compute time.Duration) Threads {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	all := max(1, float64(s.Work+s.Late+s.Absent+s.Uneven+s.End))
	n := float64(max(1, steps))
	return Threads{Runs: float64(s.Runs) / n, Run: us(s.Wall) / float64(max(1, s.Runs)), Solo: max(0, us(compute-s.Wall)/n),
		Work: float64(s.Work) / all, Late: float64(s.Late) / all, Absent: float64(s.Absent) / all, Uneven: float64(s.Uneven) / all,
		End: float64(s.End) / all, Again: float64(s.Again) / n}
}
