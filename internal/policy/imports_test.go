package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// floors states which package may import which, lowest line first. A package may import
// any package of a lower line, and those of its own line that are listed after "+" as
// importer:imported. A package without a floor fails the test.
//
// Packages of the floor "helpers" are for tests. They import downwards like others, but only
// test files and the floor "tests" may import them.
const floors = `
options:  internal/options
values:   internal/engine/tensor internal/engine/tensor/workers internal/engine/tensor/f32 internal/engine/tensor/kernel internal/engine/tensor/selftest internal/proto internal/hub internal/hub/layout internal/wire internal/security internal/attempt internal/sys/mmap internal/sys/sharedmem internal/sys/hugemem internal/sys/flock internal/lograte internal/sys/fixedport internal/sys/openfiles internal/tracing internal/engine/gguf internal/engine/gguf/dequant internal/engine/quantform internal/engine/safetensors internal/engine/modelfile internal/strictjson internal/native + internal/engine/tensor:internal/engine/tensor/f32 internal/engine/tensor:internal/engine/tensor/kernel internal/engine/tensor/kernel:internal/engine/tensor/f32 internal/engine/tensor/selftest:internal/engine/tensor internal/engine/tensor/selftest:internal/engine/tensor/f32 internal/engine/tensor/selftest:internal/engine/tensor/kernel internal/engine/tensor:internal/engine/tensor/workers internal/engine/tensor/workers:internal/engine/tensor internal/engine/tensor:internal/sys/hugemem internal/proto:internal/wire internal/engine/gguf:internal/sys/mmap internal/engine/gguf/dequant:internal/engine/gguf internal/engine/quantform:internal/engine/gguf/dequant internal/engine/gguf:internal/attempt internal/tracing:internal/lograte internal/engine/gguf:internal/engine/modelfile internal/engine/modelfile:internal/sys/flock internal/engine/modelfile:internal/sys/mmap internal/hub:internal/sys/flock internal/hub:internal/hub/layout internal/hub/layout:internal/engine/modelfile internal/hub:internal/engine/modelfile
digests:  internal/engine/piecedigest internal/engine/model/tinyconfig
machines: topology internal/engine/model internal/engine/model/rotary internal/engine/kvcache internal/engine/kvcache/memory internal/engine/kvcache/topk internal/engine/kvcache/method internal/engine/kvcache/squeezed internal/engine/kvcache/shadowkv internal/engine/kvcache/kvpolicy internal/engine/kvcache/tier collective internal/text/tokenizer internal/text/jinja internal/text/jinja/python internal/engine/sampler internal/text/grammar internal/text/grammar/regex internal/text/toolcall internal/engine/speculate internal/engine/pooling internal/text/tokenizer/vocabfile internal/text/tokenizer/categories internal/text/tokenizer/unicodeform internal/text/tokenizer/wordpiece internal/text/tokenizer/alphabet internal/text/tokenizer/unigram internal/text/tokenizer/sentencepiece internal/engine/cuda internal/engine/cuda/kernels internal/engine/cuda/probe internal/engine/model/recurrent internal/engine/model/encoder internal/engine/model/families internal/engine/model/ggufconfig internal/engine/cuda/launch internal/engine/cuda/card internal/engine/kvcache/layered + internal/engine/sampler:internal/text/grammar internal/engine/kvcache:internal/engine/kvcache/memory internal/engine/kvcache:internal/engine/sampler internal/engine/kvcache/method:internal/engine/kvcache internal/engine/kvcache/squeezed:internal/engine/kvcache internal/engine/kvcache/squeezed:internal/engine/kvcache/method internal/engine/kvcache/squeezed:internal/engine/kvcache/topk internal/engine/kvcache/shadowkv:internal/engine/kvcache internal/engine/kvcache/shadowkv:internal/engine/kvcache/method internal/engine/kvcache/shadowkv:internal/engine/kvcache/topk internal/engine/kvcache/kvpolicy:internal/engine/kvcache internal/engine/kvcache/kvpolicy:internal/engine/kvcache/method internal/engine/kvcache/kvpolicy:internal/engine/kvcache/topk internal/engine/kvcache/kvpolicy:internal/engine/kvcache/squeezed internal/engine/kvcache/kvpolicy:internal/engine/kvcache/shadowkv internal/engine/kvcache:internal/engine/kvcache/kvpolicy internal/engine/model:topology internal/text/tokenizer:internal/text/jinja internal/text/tokenizer:internal/text/jinja/python internal/text/jinja:internal/text/jinja/python internal/text/grammar:internal/text/grammar/regex collective:topology internal/text/tokenizer:internal/text/tokenizer/vocabfile internal/text/tokenizer:internal/text/tokenizer/categories internal/text/tokenizer:internal/text/tokenizer/unicodeform internal/text/tokenizer:internal/text/tokenizer/wordpiece internal/text/tokenizer:internal/text/tokenizer/alphabet internal/text/tokenizer:internal/text/tokenizer/unigram internal/text/tokenizer:internal/text/tokenizer/sentencepiece internal/text/tokenizer/vocabfile:internal/text/tokenizer/alphabet internal/text/tokenizer/vocabfile:internal/text/tokenizer/sentencepiece internal/text/tokenizer/vocabfile:internal/text/tokenizer/categories internal/text/tokenizer/unicodeform:internal/text/tokenizer/categories internal/text/tokenizer/wordpiece:internal/text/tokenizer/categories internal/text/tokenizer/wordpiece:internal/text/tokenizer/unicodeform internal/engine/cuda/probe:internal/engine/cuda internal/engine/cuda/probe:internal/engine/cuda/kernels internal/engine/cuda:internal/engine/cuda/kernels internal/engine/model:internal/engine/model/recurrent internal/engine/model/encoder:internal/engine/model internal/engine/model/encoder:internal/engine/model/rotary internal/engine/model/families:internal/engine/model internal/engine/model/families:internal/engine/model/recurrent internal/engine/model/families:internal/engine/model/rotary internal/engine/model/ggufconfig:internal/engine/model internal/engine/model/ggufconfig:internal/engine/model/families internal/engine/model/ggufconfig:internal/engine/model/rotary internal/engine/model:internal/engine/model/rotary internal/engine/cuda/probe:internal/engine/cuda/launch internal/engine/cuda/card:internal/engine/cuda internal/engine/cuda/card:internal/engine/cuda/launch internal/engine/cuda/launch:internal/engine/cuda internal/engine/cuda/launch:internal/engine/cuda/kernels internal/engine/model/ggufconfig:internal/engine/model/recurrent internal/engine/kvcache/layered:internal/engine/kvcache internal/engine/kvcache/layered:internal/engine/kvcache/kvpolicy
checkpoints: internal/engine/checkpoint
recipes:  internal/engine/pooling/recipe
adapters: internal/engine/lora
wire:     client/wire
contract: internal/server/engine
helpers:  internal/engine/lora/loratest internal/wire/wiretest internal/hub/hubtest internal/engine/model/modeltest internal/engine/kvcache/kvcachetest internal/testlevel internal/testutil internal/testmodel internal/tracing/tracingtest internal/parrot internal/server/servertest internal/engine/cuda/emulator + internal/server/servertest:internal/testutil internal/parrot:internal/engine/model/modeltest internal/engine/lora/loratest:internal/engine/model/modeltest
plans:    internal/engine/plan
wires:    collective/natsbus internal/gossip internal/rpc internal/supervise
parts:    actors/batcher/snapshots actors/layer/lowrank actors/layer/mixer actors/layer/router actors/layer/indexer actors/layer/rotation actors/layer/inputs
layer:    actors/layer
cards:    actors/layer/accelerator
sockets:  actors/socket/shard actors/socket/machine actors/socket/constraint actors/socket/draft actors/socket/adapter + actors/socket/draft:actors/socket/shard actors/socket/adapter:actors/socket/shard
caches:   actors/socket/caches
steps:    actors/socket/step
adapted:  actors/batcher/adapters actors/batcher/booking actors/batcher/settings actors/batcher/rate actors/batcher/threads + actors/batcher/settings:actors/batcher/booking actors/batcher/settings:actors/batcher/threads
names:    internal/adapters
rooms:    actors/socket actors/batcher
rigs:     internal/machine internal/engine/alone internal/engine/arithmetic + internal/engine/arithmetic:internal/engine/alone
client:   client
errors:   internal/server/apierr
bodies:   internal/server/jsonbody
http:     internal/server/httpserver
generate: internal/server/generate
vectors:  internal/server/vectors
speakers: internal/server/openai internal/server/anthropic internal/server/ollama internal/server/admin
api:      internal/server/api
journals: internal/jobs/journal
joins:    internal/join
files:    internal/jobs/routes internal/jobs/files + internal/jobs/files:internal/jobs/routes
jobs:     internal/jobs
batches:  internal/jobs/batches
weights:  internal/weights
stores:   internal/store
events:   internal/events
bus:      internal/bus
node:     internal/node
director: internal/coordinator
cluster:  cluster
tools:    internal/eval internal/bench internal/bench/forecast internal/bench/serve internal/bench/serve/workload internal/bench/serve/stats internal/cli/ui + internal/bench/forecast:internal/bench internal/bench/serve:internal/bench/serve/workload internal/bench/serve:internal/bench/serve/stats
models:   internal/cli/models
launch:   internal/cli/launch
lab:      internal/cli/lab
cli:      internal/cli
street:   cmd/shoal cmd/node cmd/coordinator deploy deploy/release internal/tools/rulerplot examples/embedding examples/jobs examples/policies internal/engine/cuda/kernels/gen
tests:    test/hub internal/policy internal/sim test/cluster test/answers test/web test/wire test/wire/link test/wire/topology test/wire/host test/wire/network test/wire/calibrate test/wire/exchange + test/wire:test/wire/exchange test/cluster:test/wire/host test/wire/topology:test/wire/link test/wire/network:test/wire/link test/wire/network:test/wire/topology test/wire/network:test/wire/host test/wire/calibrate:test/wire/host test/wire/calibrate:test/wire/topology test/wire/network:test/wire/calibrate test/wire:test/wire/host test/wire:test/wire/topology test/wire:test/wire/network test/wire:test/wire/calibrate
`

func TestImportsPointDown(t *testing.T) {
	p, err := parseFloors(floors)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sources(t) {
		for _, complaint := range p.check(s) {
			t.Error(complaint)
		}
	}
}

// TestImportPolicyCanFail shows that each rule can fail.
func TestImportPolicyCanFail(t *testing.T) {
	p, err := parseFloors("low: a\nmid: b c + b:c\nhelpers: b/btest\ntop: d\ntests: x\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, imports, want string // want "": allowed
	}{
		{"d/d.go", module + "/a", ""},
		{"a/a.go", module + "/d", "must point down"},
		{"a/a_test.go", module + "/d", "must point down"},
		{"b/b.go", module + "/c", ""},
		{"c/c.go", module + "/b", "neighbour"},
		{"c/c_test.go", module + "/b", "neighbour"},
		{"b/b_test.go", module + "/b", ""}, // package b_test
		{"a/a_test.go", module + "/b/btest", ""},
		{"d/d_test.go", module + "/b/btest", ""},
		{"x/x.go", module + "/b/btest", ""},
		{"d/d.go", module + "/b/btest", "helper of tests"},
		{"b/btest/btest.go", module + "/b", ""},
		{"b/btest/btest.go", module + "/d", "must point down"},
		{"new/new.go", module + "/a", "new has no floor"},
		{"d/d.go", module + "/new", "has no floor"},
		{"d/d.go", module, "has no floor"},
		{"d/d.go", "fmt", ""},
	} {
		got := p.check(parse(t, c.file, fmt.Sprintf("package p\nimport _ %q\n", c.imports)))
		if text := strings.Join(got, "; "); (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s imports %s: got %q, want %q", c.file, c.imports, text, c.want)
		}
	}
	for _, bad := range []string{"a b", "low: a\nhigh: a", "low: a + a:b", "low: a b + ab"} {
		if _, err := parseFloors(bad); err == nil {
			t.Errorf("policy %q was accepted", bad)
		}
	}
}

type importPolicy struct {
	floor map[string]int
	line  []string        // names of the floors
	same  map[string]bool // importer:imported on the same floor
}

func parseFloors(text string) (*importPolicy, error) {
	p := &importPolicy{floor: map[string]int{}, same: map[string]bool{}}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("policy line without a floor name: %q", line)
		}
		p.line = append(p.line, name)
		names, pairs, _ := strings.Cut(rest, "+")
		here := strings.Fields(names)
		for _, n := range here {
			if _, twice := p.floor[n]; twice {
				return nil, fmt.Errorf("policy names %s twice", n)
			}
			p.floor[n] = i
		}
		for _, pair := range strings.Fields(pairs) {
			a, b, ok := strings.Cut(pair, ":")
			if !ok || !slices.Contains(here, a) || !slices.Contains(here, b) {
				return nil, fmt.Errorf("policy line %s: %q is not importer:imported of that line", name, pair)
			}
			p.same[pair] = true
		}
	}
	return p, nil
}

// check returns the violations in the imports of one file.
func (p *importPolicy) check(s source) (complaints []string) {
	at, ok := p.floor[s.pkg]
	if !ok {
		return []string{fmt.Sprintf("%s: package %s has no floor: add it to the policy", s.name, s.pkg)}
	}
	for _, path := range s.imports {
		imp, ours := strings.CutPrefix(path, module+"/")
		if !ours && path != module || imp == s.pkg {
			continue
		}
		below, ok := p.floor[imp]
		switch {
		case !ok:
			complaints = append(complaints, fmt.Sprintf("%s imports %s, which has no floor", s.name, path))
		case p.line[below] == "helpers":
			if !s.test && p.line[at] != "tests" && (p.line[at] != "helpers" || !p.same[s.pkg+":"+imp]) {
				complaints = append(complaints, fmt.Sprintf("%s imports %s, a helper of tests, from code that ships", s.name, path))
			}
		case below > at:
			complaints = append(complaints, fmt.Sprintf("%s imports %s: imports must point down (%s stands on %s, %s on %s)",
				s.name, path, s.pkg, p.line[at], imp, p.line[below]))
		case below == at && !p.same[s.pkg+":"+imp]:
			complaints = append(complaints, fmt.Sprintf("%s imports its neighbour %s: allow it in the policy or move the shared part down", s.name, path))
		}
	}
	return complaints
}
