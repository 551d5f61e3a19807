package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	batchthreads "github.com/shoal-llm/shoal/actors/batcher/threads"
	"github.com/shoal-llm/shoal/internal/options"
)

// Trials compares decode steps with each thread count that a node may use, and evaluates choosing
// the count from some of these measurements.
type Trials struct {
	Machine Machine   `json:"machine"`
	Model   string    `json:"model"`
	Quant   string    `json:"quant"`
	Mapping string    `json:"mapping"`
	Nodes   int       `json:"nodes"`
	Batch   int       `json:"batch"`
	Context int       `json:"context"`
	Rounds  int       `json:"rounds"`
	Threads []int     `json:"threads"` // per node
	Micros  []float64 `json:"step_us"` // mean of a step with this thread count
	Plans   []int     `json:"plans"`   // plans of one or more steps in that mean
	Chosen  int       `json:"chosen"`  // threads
	Near    float64   `json:"near"`    // fraction of choices from successive rounds that take at most 5 % longer than the fastest count
	Longer  float64   `json:"longer"`  // mean additional time per step with such a choice
}

// TrialsOfProcesses decodes a batch with each thread count in turn, trials.Rounds times. trials is the value with
// which the coordinator started.
func TrialsOfProcesses(ctx context.Context, o ProcessOptions, trials *options.ThreadTrials) (*Trials, error) {
	if o.Threads.MaxShift() == 0 {
		return nil, fmt.Errorf("bench: nodes with %d threads have no other thread count to try", o.Threads.Max)
	}
	start := time.Now()
	var took [][]float64
	if err := o.settled(ctx, settleTimes*(trials.Rounds/batchthreads.Rounds+1), func() (err error) {
		took, err = trials.Times(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	if err := undisturbed(o.Coordinator.Events(0), start); err != nil {
		return nil, err
	}
	if took == nil {
		return nil, errors.New("bench: sequences end before all rounds are done: take fewer --trials, or a smaller context")
	}
	f := &Trials{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: o.Coordinator.Cluster().Mapping, Nodes: o.Nodes,
		Batch: o.Batch, Context: o.Context, Rounds: trials.Rounds}
	for shift, t := range took {
		if len(t) == 0 {
			return nil, fmt.Errorf("bench: %d threads were not tried: the steps changed their kind", o.Threads.Shifted(shift))
		}
		sum := 0.0
		for _, micros := range t {
			sum += micros
		}
		f.Plans = append(f.Plans, len(t))
		f.Threads, f.Micros = append(f.Threads, o.Threads.Shifted(shift)), append(f.Micros, sum/float64(len(t)))
	}
	f.Chosen = f.Threads[batchthreads.Best(took, 0)]
	f.Near, f.Longer = choices(took, f.Micros, trials.Rounds)
	return f, nil
}

// choices evaluates the choice from as many successive rounds as a batcher uses.
func choices(took [][]float64, micros []float64, rounds int) (near, longer float64) {
	n := rounds - batchthreads.Rounds + 1
	for first := range n {
		some := make([][]float64, len(took))
		for i, t := range took {
			some[i] = t[len(t)*first/rounds : len(t)*(first+batchthreads.Rounds)/rounds]
		}
		over := micros[batchthreads.Best(some, 0)]/slices.Min(micros) - 1
		longer += over / float64(n)
		if over <= 0.05 {
			near += 1 / float64(n)
		}
	}
	return near, longer
}
