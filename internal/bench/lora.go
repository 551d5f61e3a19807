package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// LoRA compares decode with adapters and without.
type LoRA struct {
	Setup
	Rank    int       `json:"rank"`
	Rows    int       `json:"rows"` // of each adapter in a step
	Context int       `json:"context"`
	Counts  []LoRARow `json:"counts"`
}

// LoRARow is the result for a number of adapters. Figures are means over all rounds, which alternate. A
// ratio divides tokens per second with adapters by tokens per second without; by processor time it is less
// affected by other load.
type LoRARow struct {
	Adapters int     `json:"adapters"`
	Batch    int     `json:"batch"`
	Plain    float64 `json:"plain_tokens_per_s"`
	Adapted  float64 `json:"adapted_tokens_per_s"`
	Ratio    float64 `json:"ratio"`
	CPURatio float64 `json:"cpu_ratio"`     // 0: unknown
	Bytes    int64   `json:"adapter_bytes"` // of one adapter
}

// LoRAOptions selects the measurements of RunLoRA.
type LoRAOptions struct {
	Counts       []int // of adapters
	Rank, Rows   int
	Rounds       int
	StepsARound  int
	ContextOfRow int
}

// RunLoRA measures decode steps in which each of several adapters has a number of rows, and the same
// steps without adapters, in alternation.
func RunLoRA(ctx context.Context, o Options, l LoRAOptions, progress func(string)) (_ *LoRA, err error) {
	most := 0
	for _, n := range l.Counts {
		most = max(most, n)
	}
	o.Context, o.Tokens = l.ContextOfRow, l.StepsARound+warmSteps
	batch := most * l.Rows
	c, k, err := o.shape(batch, o.Context+o.Tokens+64, batch)
	if err != nil {
		return nil, err
	}
	if o.adapters, err = lora.OpenStore("", 0); err != nil {
		return nil, err
	}
	defer o.adapters.Close()
	progress("writing adapters")
	ids := make([]lora.ID, most)
	for i := range ids {
		if ids[i], err = randomAdapter(o.adapters, func(dir string) error { return lora.WriteRandom(dir, c, l.Rank, uint64(i)) }); err != nil {
			return nil, err
		}
	}
	progress("loading " + o.Model)
	r, err := newRig(ctx, o, int64(2*batch)*k.heldBytes(o.Context+o.Tokens+128), batch)
	if err != nil {
		return nil, err
	}
	defer r.close()
	out := &LoRA{Setup: r.setup(o, "full"), Rank: l.Rank, Rows: l.Rows, Context: o.Context}
	for _, n := range l.Counts {
		row := LoRARow{Adapters: n, Batch: n * l.Rows}
		bytes, err := r.LoadAdapters(ctx, ids[:n])
		if err != nil {
			return nil, err
		}
		row.Bytes = bytes / int64(n)
		var wall, processor [2]time.Duration // without, with
		for round := range 2 * l.Rounds {
			with := round % 2
			progress(fmt.Sprintf("%d adapters, round %d of %d", n, round/2+1, l.Rounds))
			r.Adapters = map[uint64]lora.ID{}
			for i := range row.Batch * with {
				r.Adapters[uint64(i+1)] = ids[i/l.Rows]
			}
			if _, err := r.fill(ctx, row.Batch, o.Context, "full"); err != nil {
				return nil, err
			}
			_, err := r.decode(ctx, row.Batch, o.Context, l.StepsARound, func(took, cpu time.Duration, _ step.Times) {
				wall[with] += took
				processor[with] += cpu
			})
			if err == nil {
				err = r.empty(ctx, row.Batch)
			}
			if err != nil {
				return nil, err
			}
		}
		row.compare(l.StepsARound*l.Rounds, wall, processor)
		out.Counts = append(out.Counts, row)
	}
	return out, nil
}

// compare computes the figures from the times of all steps, without adapters and with them.
func (r *LoRARow) compare(steps int, wall, processor [2]time.Duration) {
	tokens := float64(r.Batch * steps)
	r.Plain, r.Adapted = tokens/wall[0].Seconds(), tokens/wall[1].Seconds()
	r.Ratio, r.CPURatio = r.Adapted/r.Plain, share(processor[0].Seconds(), processor[1].Seconds())
}

// randomAdapter stores an adapter that write has written to a folder.
func randomAdapter(s *lora.Store, write func(dir string) error) (id lora.ID, err error) {
	dir, err := os.MkdirTemp("", "shoal-random-adapter-")
	if err != nil {
		return id, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := write(filepath.Join(dir, "adapter")); err != nil {
		return id, err
	}
	return s.Copy(os.DirFS(filepath.Join(dir, "adapter")))
}
