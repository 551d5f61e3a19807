package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
)

// Trials is what decode steps take with each number of threads that a node may have, and how well a
// number is chosen by some of that.
type Trials struct {
	Machine Machine   `json:"machine"`
	Model   string    `json:"model"`
	Quant   string    `json:"quant"`
	Mapping string    `json:"mapping"`
	Nodes   int       `json:"nodes"`
	Batch   int       `json:"batch"`
	Context int       `json:"context"`
	Rounds  int       `json:"rounds"`
	Threads []int     `json:"threads"` // of each node
	Micros  []float64 `json:"step_us"` // of a step, in the mean, with as many
	Plans   []int     `json:"plans"`   // of one step or more, of which that is
	Chosen  int       `json:"chosen"`  // threads
	Near    float64   `json:"near"`    // part of choices by successive rounds that take up to 5 % longer than the fastest number
	Longer  float64   `json:"longer"`  // how much longer steps take, in the mean, with what was so chosen
}

// TrialsOfProcesses decodes a batch with each number of threads in turn, rounds times.
func TrialsOfProcesses(ctx context.Context, o ProcessOptions, rounds int) (*Trials, error) {
	if o.Threads.Halvings() == 0 {
		return nil, fmt.Errorf("bench: nodes of %d threads have no other number of them", o.Threads.Most)
	}
	start := time.Now()
	var took [][]float64
	if err := o.settled(ctx, settleTimes*(rounds/batcher.TrialRounds+1), func() (err error) {
		took, err = o.Coordinator.ThreadTrials(ctx)
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
	f := &Trials{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: o.Coordinator.Cluster().Mapping, Nodes: o.Nodes, Batch: o.Batch, Context: o.Context, Rounds: rounds}
	for halvings, t := range took {
		if len(t) == 0 {
			return nil, fmt.Errorf("bench: %d threads have not been tried: the steps are of another kind by now", o.Threads.Halved(halvings))
		}
		sum := 0.0
		for _, micros := range t {
			sum += micros
		}
		f.Plans = append(f.Plans, len(t))
		f.Threads, f.Micros = append(f.Threads, o.Threads.Halved(halvings)), append(f.Micros, sum/float64(len(t)))
	}
	f.Chosen = f.Threads[batcher.ChooseThreads(took, 0)]
	f.Near, f.Longer = choices(took, f.Micros, rounds)
	return f, nil
}

// choices says how good those are by as many successive rounds as a batcher takes.
func choices(took [][]float64, micros []float64, rounds int) (near, longer float64) {
	n := rounds - batcher.TrialRounds + 1
	for first := range n {
		some := make([][]float64, len(took))
		for i, t := range took {
			some[i] = t[len(t)*first/rounds : len(t)*(first+batcher.TrialRounds)/rounds]
		}
		over := micros[batcher.ChooseThreads(some, 0)]/slices.Min(micros) - 1
		longer += over / float64(n)
		if over <= 0.05 {
			near += 1 / float64(n)
		}
	}
	return near, longer
}
