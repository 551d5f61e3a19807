// Package kvpolicy is the table of cache policies. A policy that needs one page is a file here; those
// with an index of their own are packages next to this one.
package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/shadowkv"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/squeezed"
)

// known are the policies in the order of Usage. A new policy is one more line.
var known = []method.Method{full, streaming, snapKV, snapStream, sage, h2o, tova, knorm, pyramidKV, adaKV, lagKV, resnap, quest, loki,
	infiniGen, shadowkv.Method, squeezed.Method}

var full = method.Method{Name: "full", Parts: func([]int) kvcache.Parts { return kvcache.Parts{} }}

var streaming = method.Method{Name: "streaming", Params: []method.Param{method.Size("sink", 4, 0), method.Size("recent", 1020, 1)},
	Parts: func(v []int) kvcache.Parts {
		return kvcache.Streaming(v[0], v[1]).Parts
	}}

// Parse returns the policy of a text as method.Parse does. The empty text is "full". Errors wrap
// kvcache.ErrPolicy.
func Parse(spec string) (*kvcache.Policy, error) {
	if spec == "" {
		return kvcache.Full(), nil
	}
	return method.Parse(known, spec)
}

// Usage lists the known policies with their parameters and defaults.
func Usage() (usage []string) {
	for _, m := range known {
		usage = append(usage, m.Usage())
	}
	return usage
}
