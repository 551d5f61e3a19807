package launch

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// resolveQuant replaces --quant auto with the type that fits, and prints the choice. If a given
// type does not fit, its error suggests alternatives.
func (f *ServeFlags) resolveQuant(e *ui.Env, serve *cluster.ServeConfig, r models.Capacity) error {
	ck, err := checkpoint.OpenSwiftKV(serve.Model, serve.SwiftKV)
	if err != nil {
		return err
	}
	defer ck.Close()
	filled := *serve
	if f.Quant == models.QuantAuto {
		filled.Weights = ""
	}
	cluster.Identify(ck, &filled)
	if err := filled.Validate(&ck.Config); err != nil {
		return err
	}
	weights, err := tensor.ParseDType(filled.Weights)
	if err != nil {
		return err
	}
	fit, err := models.FitOf(bench.PlanModelOf(filled.Names[0], &ck.Config), &filled, r)
	if err != nil {
		return err
	}
	if f.Quant != models.QuantAuto {
		return errors.Join(fit.Check(weights), printForm(e, ck, weights))
	}
	if ck.Config.DType == tensor.F16 { // the default for f16 is f32
		weights = tensor.F16
	}
	chosen, why, err := fit.Choose(weights)
	if err != nil {
		return err
	}
	fmt.Fprintln(e.Stderr, why)
	f.Quant, serve.Weights = models.Quant(chosen.String()), chosen.String()
	return printForm(e, ck, chosen)
}

// printForm prints how weights that were published quantised are held in memory.
func printForm(e *ui.Env, ck *checkpoint.Checkpoint, weights tensor.DType) error {
	if ck.Config.Quantised == nil {
		return nil
	}
	lost, err := shard.HeldError(ck, weights)
	if err != nil {
		return err
	}
	how := "without loss"
	if lost > 0 {
		how = fmt.Sprintf("with a relative error of %.2g %%", 100*lost)
	}
	fmt.Fprintf(e.Stderr, "weights: published as %s, held as %s %s\n", ck.Config.Quantised.Method, weights, how)
	return nil
}
