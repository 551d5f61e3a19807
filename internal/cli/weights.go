package cli

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// fitOf returns the fit of a model with the settings of a server. It calculates as shoal plan.
func fitOf(m bench.PlanModel, serve *cluster.ServeConfig, r capacity) (*fit, error) {
	kv, err := tensor.ParseDType(serve.KV)
	if err != nil {
		return nil, err
	}
	policy, err := kvpolicy.Parse(serve.Policy)
	if err != nil {
		return nil, err
	}
	mapping, err := topology.ParseMapping(serve.Mapping)
	if err != nil {
		mapping = topology.Gather // auto: gather needs the least memory
	}
	geometry := shard.GeometryOf(&m.Config, kv)
	return &fit{capacity: r, context: serve.MaxContext,
		held: func(weights tensor.DType, nodes int) (bench.NodeMemory, error) {
			return bench.NodeBytes(m, bench.PlanOptions{Sockets: nodes, Weights: weights, Mapping: mapping, Rows: serve.StepTokens})
		},
		cacheOf: func(tokens int) int64 { return kvcache.ResidentBytes(geometry, tokens, tokens, policy) },
	}, nil
}

// resolveQuant replaces --quant auto with the type that fits, and prints the choice. If a given
// type does not fit, its error suggests alternatives.
func (f *serveFlags) resolveQuant(e *env, serve *cluster.ServeConfig, r capacity) error {
	ck, err := model.OpenSwiftKV(serve.Model, serve.SwiftKV)
	if err != nil {
		return err
	}
	defer ck.Close()
	filled := *serve
	if f.Quant == quantAuto {
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
	fit, err := fitOf(bench.PlanModelOf(filled.Names[0], &ck.Config), &filled, r)
	if err != nil {
		return err
	}
	if f.Quant != quantAuto {
		return fit.check(weights)
	}
	if ck.Config.DType == tensor.F16 { // the default for f16 is f32
		weights = tensor.F16
	}
	chosen, why, err := fit.choose(weights)
	if err != nil {
		return err
	}
	fmt.Fprintln(e.stderr, why)
	f.Quant, serve.Weights = quantType(chosen.String()), chosen.String()
	return nil
}
