package bench

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Threads is where the time of the compute threads went in one step, or one prompt: the
// caller's between Runs (Solo), and of the time that all threads had within Runs the parts of
// each cause, which add up to 1 (tensor.Spent).
type Threads struct {
	Runs   float64 `json:"runs"`    // a step
	Run    float64 `json:"run_us"`  // of one, on average
	Solo   float64 `json:"solo_us"` // a step: one thread computes, the others wait
	Work   float64 `json:"work"`
	Late   float64 `json:"late"`   // until a thread's first task
	Absent float64 `json:"absent"` // threads that came when nothing was left
	Uneven float64 `json:"uneven"` // from a thread's last task to the last of all
	End    float64 `json:"end"`    // until the caller went on
	Again  float64 `json:"again"`  // tasks of products a step that were done again, since their thread was late
}

// threadsOf is what was spent in so many steps that computed for so long together.
func threadsOf(s tensor.Spent, steps int, compute time.Duration) Threads {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	all := max(1, float64(s.Work+s.Late+s.Absent+s.Uneven+s.End))
	n := float64(max(1, steps))
	return Threads{Runs: float64(s.Runs) / n, Run: us(s.Wall) / float64(max(1, s.Runs)), Solo: max(0, us(compute-s.Wall)/n),
		Work: float64(s.Work) / all, Late: float64(s.Late) / all, Absent: float64(s.Absent) / all, Uneven: float64(s.Uneven) / all, End: float64(s.End) / all, Again: float64(s.Again) / n}
}
