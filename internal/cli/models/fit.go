package models

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/topology"
)

// Capacity is the memory that a cluster has for a model.
type Capacity struct {
	Local  int    // nodes on this machine
	Total  int    // nodes of the cluster, at least Local
	Limit  int64  // bytes that all nodes of a machine may use; 0 if unknown
	From   string // source of the limit, for messages
	Caches int64  // bytes of each node's caches
	// Adapters is the memory for LoRA adapters of each node in bytes, if the cluster serves any.
	Adapters int64
}

// marginPart is the divisor that gives the share of a machine's memory for the system, the
// runtime and messages.
const marginPart = 16

// needs is the memory that the nodes of one machine use, in bytes.
type needs struct {
	weights, workspace, caches int64 // of each node
	adapters                   int64 // of each node
	embedding                  int64 // mapped once per machine
	margin                     int64 // of the machine
	nodes                      int64 // of the machine
}

func (n needs) sum() int64 {
	return n.nodes*(n.weights+n.workspace+n.caches+n.adapters) + n.embedding + n.margin
}

// text formats the sum and its parts.
func (n needs) text() string {
	of := ""
	if n.nodes > 1 {
		of = fmt.Sprintf("%d times ", n.nodes)
	}
	adapters := ""
	if n.adapters > 0 {
		adapters = fmt.Sprintf(", %s of LoRA adapters", options.SizeText(n.adapters))
	}
	return fmt.Sprintf("%s = %s%s of weights, %s of activations%s and %s of caches, %s of embedding and a margin of %s",
		options.SizeText(n.sum()), of, options.SizeText(n.weights), options.SizeText(n.workspace), adapters, options.SizeText(n.caches),
		options.SizeText(n.embedding), options.SizeText(n.margin))
}

// fit decides how a model fits in a capacity. Its functions are pure.
type fit struct {
	Capacity
	// held returns the memory of a node without caches, in a cluster of a number of nodes. It
	// fails if the model cannot be split into one part for each node.
	held func(weights tensor.DType, nodes int) (bench.NodeMemory, error)
	// cacheOf returns the cache size in bytes of one sequence with a number of tokens.
	cacheOf func(tokens int) int64
	context int // maximum context in tokens
}

// needs returns the memory of one machine with local nodes, in a cluster of total nodes.
func (f *fit) needs(weights tensor.DType, local, total int) (needs, error) {
	h, err := f.held(weights, total)
	return needs{weights: h.Weights, workspace: h.Workspace, caches: f.Caches, adapters: f.Adapters, embedding: h.Embedding,
		margin: f.Limit / marginPart, nodes: int64(local)}, err
}

// fits reports whether a type of weights fits, and how much memory it needs.
func (f *fit) fits(weights tensor.DType, local, total int) (bool, needs, error) {
	n, err := f.needs(weights, local, total)
	return err == nil && n.sum() <= f.Limit, n, err
}

// Held returns the memory that the nodes of this machine take for the model, without caches and margin.
func (f *fit) Held(weights tensor.DType) int64 {
	n, err := f.needs(weights, f.Local, f.Total)
	if err != nil {
		return 0
	}
	n.caches, n.adapters, n.margin = 0, 0, 0 // of all models together
	return n.sum()
}

// quantCandidates returns the types in which a checkpoint can be loaded, largest first: the
// stored type and smaller ones.
func quantCandidates(stored tensor.DType) (out []tensor.DType) {
	switch {
	case stored == tensor.Int4 || stored == tensor.MXFP4:
		return []tensor.DType{stored, tensor.Q4_0}
	case !kernel.Quantized(stored):
		out = append(out, stored)
		if stored == tensor.F32 {
			out = append(out, tensor.BF16)
		}
	}
	return append(out, tensor.Q8_0, tensor.Q4_0)
}

// Choose returns the largest type that fits, and a line that explains the choice.
func (f *fit) Choose(stored tensor.DType) (tensor.DType, string, error) {
	if f.Limit == 0 {
		return stored, fmt.Sprintf("--quant auto: %s, as stored: the memory of this system is unknown", stored), nil
	}
	beyond := ""
	for _, dt := range quantCandidates(stored) {
		ok, n, err := f.fits(dt, f.Local, f.Total)
		if err != nil {
			return dt, "", err
		}
		if ok {
			return dt, fmt.Sprintf("--quant auto: %s, which takes %s, of the %s that %s may use%s", dt, n.text(),
				options.SizeText(f.Limit), f.From, beyond), nil
		}
		beyond = fmt.Sprintf("; %s would take %s", dt, options.SizeText(n.sum()))
	}
	return 0, "", f.misfitError(tensor.Q4_0)
}

// Check refuses a type of weights that does not fit. The error lists alternatives.
func (f *fit) Check(weights tensor.DType) error {
	if f.Limit == 0 {
		return nil
	}
	if ok, _, err := f.fits(weights, f.Local, f.Total); ok || err != nil {
		return err
	}
	return f.misfitError(weights)
}

// misfitError explains why a type of weights does not fit. It suggests a smaller type, a shorter
// context, or more machines.
func (f *fit) misfitError(weights tensor.DType) error {
	n, err := f.needs(weights, f.Local, f.Total)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the model does not fit: with weights of type %s it takes %s, and %s may use %s. These would fit:",
		weights, n.text(), f.From, options.SizeText(f.Limit))
	choices := 0
	option := func(format string, args ...any) {
		choices++
		fmt.Fprintf(&b, "\n  "+format, args...)
	}
	for _, dt := range quantCandidates(weights) {
		if dt == weights {
			continue
		}
		if ok, less, err := f.fits(dt, f.Local, f.Total); err == nil && ok {
			option("a smaller type of weights: --quant %s takes %s", dt, options.SizeText(less.sum()))
			break
		}
	}
	if tokens, caches := f.shorterContext(n); tokens > 0 {
		option("a shorter context: --kv-memory %dMiB --max-context %d", caches>>20, tokens)
	}
	if machines, less := f.machinesNeeded(weights); machines > 0 {
		option("more nodes: %d machines like this one, with a node each that takes %s (shoal up --cluster NAME --expect %d)",
			machines, options.SizeText(less.sum()), machines)
	}
	if choices == 0 {
		option("nothing on machines of this size: use machines with more memory")
	}
	return errors.New(b.String())
}

// shorterContext returns the longest context whose cache fits in the remaining memory, and the
// size of that memory. tokens is 0 if none fits.
func (f *fit) shorterContext(n needs) (tokens int, caches int64) {
	n.caches = 0
	caches = (f.Limit - n.sum()) / n.nodes &^ (1<<20 - 1)
	return sort.Search(f.context, func(i int) bool { return f.cacheOf(i+1) > caches }), caches
}

// machinesNeeded returns the smallest number of machines with one node each on which a type of
// weights fits, or 0.
func (f *fit) machinesNeeded(weights tensor.DType) (int, needs) {
	for total := max(2, f.Total-f.Local+1); total <= topology.DefaultMaxNodes; total++ {
		if total == f.Total && f.Local == 1 {
			continue
		}
		if ok, n, err := f.fits(weights, 1, total); err != nil {
			break // the model cannot be split further
		} else if ok {
			return total, n
		}
	}
	return 0, needs{}
}

// FitOf returns the fit of a model with the settings of a server. It calculates as shoal plan.
func FitOf(m bench.PlanModel, serve *cluster.ServeConfig, r Capacity) (*fit, error) {
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
	return &fit{Capacity: r, context: serve.MaxContext,
		held: func(weights tensor.DType, nodes int) (bench.NodeMemory, error) {
			return bench.NodeBytes(m, bench.PlanOptions{Sockets: nodes, Weights: weights, Mapping: mapping, Rows: serve.StepTokens})
		},
		cacheOf: func(tokens int) int64 { return kvcache.ResidentBytes(geometry, tokens, tokens, policy.For(tokens)) },
	}, nil
}
