package cluster

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/options"
)

// memoryWant is the demand of one of several models for the cache memory of a node.
type memoryWant struct {
	fixed    int64 // bytes that its settings give; 0: a part of the rest
	perToken int64 // bytes of a full cache for each token
}

// splitMemory divides the cache memory of a node between several models. Models with a size in
// their settings come first. The other models share the rest, so that each holds the same number of tokens.
func splitMemory(bytes int64, wants []memoryWant) []int64 {
	out := make([]int64, len(wants))
	rest, sum := max(bytes, 0), 0.0
	for i, w := range wants {
		if w.fixed > 0 {
			out[i] = min(w.fixed, rest)
			rest -= out[i]
		} else {
			sum += float64(max(w.perToken, 1))
		}
	}
	for i, w := range wants {
		if w.fixed == 0 {
			out[i] = int64(float64(rest) * (float64(max(w.perToken, 1)) / sum))
		}
	}
	return out
}

// CheckMemory refuses the parts of several models in the cache memory of a node, in bytes, if one of them
// is too small for any request. The configs are checked and have their defaults.
func CheckMemory(bytes int64, models []ServeConfig) error {
	if len(models) < 2 {
		return nil
	}
	wants, least := make([]memoryWant, len(models)), make([]int64, len(models))
	for i := range models {
		s := &models[i]
		geometry, policy, err := cachesOf(s)
		if err != nil {
			return err
		}
		wants[i] = memoryWant{fixed: s.KVMemory, perToken: tokenBytes(geometry)}
		least[i] = kvcache.ResidentBytes(geometry, 1, 1, policy)
	}
	for i, part := range splitMemory(bytes, wants) {
		if part < least[i] {
			return ofModel(len(models), &models[i],
				fmt.Errorf("cluster: the model's part of %s %d is %d bytes, but the caches of the shortest request take %d: raise %s, or add "+
					"kv-memory=SIZE to each %s", options.Name("kv-memory"), bytes, part, least[i], options.Name("kv-memory"), options.Name("model")))
		}
	}
	return nil
}

// cachesOf returns the layout of a model's caches and its default policy.
func cachesOf(s *ServeConfig) (geometry kvcache.Geometry, policy *kvcache.Policy, err error) {
	ck, err := checkpoint.OpenSwiftKV(s.Model, s.SwiftKV)
	if err != nil {
		return geometry, nil, err
	}
	defer ck.Close()
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return geometry, nil, err
	}
	policy, err = kvpolicy.Parse(s.Policy)
	return shard.GeometryOf(&ck.Config, kv), policy, err
}

// tokenBytes returns the bytes that a full cache takes for each token.
func tokenBytes(g kvcache.Geometry) int64 {
	const tokens = 1024
	return (kvcache.ResidentBytes(g, tokens, tokens, kvcache.Full()) + tokens - 1) / tokens
}
