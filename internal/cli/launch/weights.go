package launch

import (
	"fmt"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// resolveQuant replaces --quant auto with the type that fits, and prints the choice. If a given
// type does not fit, its error suggests alternatives.
func (f *ServeFlags) resolveQuant(e *ui.Env, serve *cluster.ServeConfig, r models.Capacity) error {
	ck, err := model.OpenSwiftKV(serve.Model, serve.SwiftKV)
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
		return fit.Check(weights)
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
	return nil
}
