package launch

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// resolveQuants replaces the type auto of weights with the type that fits, and prints the choice. If a
// given type does not fit, its error suggests alternatives. Models with a given type take their memory
// first.
func resolveQuants(e *ui.Env, all []modelSettings, r models.Capacity) error {
	for _, auto := range []bool{false, true} {
		for i := range all {
			m := &all[i]
			if (m.Weights == string(models.QuantAuto)) != auto {
				continue
			}
			took, err := resolveQuant(e, m, r, len(all) > 1)
			if err != nil {
				return ofModel(all, i, err)
			}
			if r.Limit > 0 {
				r.Limit = max(1, r.Limit-took)
			}
		}
	}
	return nil
}

// resolveQuant does it for one model, and returns the bytes that its weights and activations take.
func resolveQuant(e *ui.Env, m *modelSettings, r models.Capacity, named bool) (took int64, err error) {
	ck, err := checkpoint.OpenSwiftKV(m.Model, m.SwiftKV)
	if err != nil {
		return 0, err
	}
	defer ck.Close()
	filled := m.ServeConfig
	if m.Weights == string(models.QuantAuto) {
		filled.Weights = ""
	}
	cluster.Identify(ck, &filled)
	if err := filled.Validate(&ck.Config); err != nil {
		return 0, err
	}
	weights, err := tensor.ParseDType(filled.Weights)
	if err != nil {
		return 0, err
	}
	fit, err := models.FitOf(bench.PlanModelOf(filled.Names[0], &ck.Config), &filled, r)
	if err != nil {
		return 0, err
	}
	if m.Weights != string(models.QuantAuto) {
		if err := fit.Check(weights); err != nil {
			return 0, err
		}
		return fit.Held(weights), printForm(e, ck, weights)
	}
	if ck.Config.DType == tensor.F16 { // the default for f16 is f32
		weights = tensor.F16
	}
	chosen, why, err := fit.Choose(weights)
	if err != nil {
		return 0, err
	}
	if named {
		why = filled.Names[0] + ": " + why
	}
	fmt.Fprintln(e.Stderr, why)
	m.Weights = chosen.String()
	return fit.Held(chosen), printForm(e, ck, chosen)
}

// printForm prints how weights that were published quantized are held in memory.
func printForm(e *ui.Env, ck *checkpoint.Checkpoint, weights tensor.DType) error {
	if ck.Config.Quantized == nil {
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
	fmt.Fprintf(e.Stderr, "weights: published as %s, held as %s %s\n", ck.Config.Quantized.Method, weights, how)
	return nil
}
