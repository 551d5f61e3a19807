package socket

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// mixed returns requests of all kinds: greedy and sampled, short and long, with every policy. They
// arrive one after another, so that batches keep changing.
func mixed(policy string) []*request {
	var reqs []*request
	for i, n := range []int{1, 7, 64, 65, 200, 333, 511} {
		q := &request{max: 24, owner: i, policy: policy, arrives: 3 * i, params: sampler.Default()}
		q.params.Seed, q.params.Logprobs = uint64(i), 5
		switch i % 3 {
		case 0:
			q.params.Temperature = 0
		case 1:
			q.params.TopP, q.params.TopK = 0.9, 40
		case 2:
			q.params.RepetitionPenalty, q.params.FrequencyPenalty = 1.2, 0.5
		}
		for j := range n {
			q.prompt = append(q.prompt, int32((j*j*31+i*17+j)%500+5))
		}
		reqs = append(reqs, q)
	}
	return reqs
}

// bits returns all results of all requests as bytes.
func bits(t *testing.T, reqs []*request) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, q := range reqs {
		for _, s := range q.scores {
			c := pb.Clone(s).(*proto.Sampled)
			c.Seq, c.Prompt = 0, nil
			b, err := pb.MarshalOptions{Deterministic: true}.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "%x\n", b)
		}
	}
	return out.Bytes()
}

// TestSameBits checks that results depend on the request only: not on the number of sockets, their
// shares, the mapping, the chunk size or the other requests in the batch.
func TestSameBits(t *testing.T) {
	policies := []string{"full", "streaming:sink=4,recent=60", "snapkv:topk=56,obs=8,pool=5",
		"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "sage:sink=4,recent=30,topk=50", "h2o:recent=40,topk=40",
		"h2o:recent=40,topk=40,step=1", "tova:size=80",
		"streaming:sink=4,recent=60,positions=cache", "h2o:recent=40,topk=40,step=1,positions=cache,half=1",
		"knorm:sink=4,recent=40,topk=40", "quest:page=16,budget=96", "quest:page=32,budget=64,skip=1",
		"shadowkv:chunk=8,budget=40,outliers=3,local=2", "shadowkv:chunk=4,budget=32,outliers=0,local=1,int8=1,skip=1",
		"shadowkv:keys=lowrank,rank=16,chunk=8,budget=40,outliers=3,local=2",
		"shadowkv:keys=lowrank,rank=8,chunk=16,budget=32,outliers=0,local=1,skip=1",
		"squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8", "squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
		"snapkv:topk=56,obs=8,pool=5,votes=prefix", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7,votes=candidates",
		"pyramidkv:topk=50,obs=8,pool=5,beta=4", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7,layers=pyramid,beta=3",
		"lagkv:sink=4,lag=16,topk=70", "loki:budget=40,dims=0.5,calib=32",
		"infinigen:alpha=2,most=0.3,calib=32", "resnap:topk=20,every=9,obs=8,pool=5", "adakv:topk=70,obs=8,pool=5",
		"snapstream:sink=4,recent=20,topk=20,obs=8,recall=16", "sage:sink=0,recent=8,topk=30,recall=32,page=32",
		"streaming:sink=4,recent=20,recall=16",
		"snapstream:sink=4,recent=20,topk=64,obs=8,pool=7,heads=ada,floor=0",
		"snapkv:topk=40,obs=8,pool=5,ring=20", "squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64,ring=24",
		"shadowkv:chunk=8,budget=40,outliers=3,local=2,ring=16", "quest:page=32,budget=64,skip=1,ring=9",
		"shadowkv:keys=lowrank,rank=16,chunk=8,budget=40,outliers=3,local=1,ring=11",
		"loki:budget=40,dims=0.5,calib=32,ring=7", "infinigen:alpha=2,most=0.3,calib=32,ring=20"}
	if testing.Short() {
		policies = append(policies[:4], "quest:page=16,budget=96", "shadowkv:chunk=8,budget=40,outliers=3,local=2",
			"shadowkv:keys=lowrank,rank=16,chunk=8,budget=40,outliers=3,local=2",
			"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64")
	}
	type row struct {
		policy string
		kv     tensor.DType
	}
	rows := []row{{"full", tensor.Int8}, {policies[3], tensor.Int8}}
	for i, policy := range policies {
		if !raceEnabled || i == 3 {
			rows = append(rows, row{policy, tensor.BF16})
		}
	}
	for i, row := range rows {
		policy := row.policy
		t.Run(fmt.Sprintf("%v:%s", row.kv, policy), func(t *testing.T) {
			t.Parallel()
			alone := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, kv: row.kv})
			want := mixed(policy)
			for _, q := range want {
				q.arrives = 0
				alone.generate(512, q) // one request at a time, with whole prompts
			}
			cuts := []struct {
				sockets, chunk int
				mapping        topology.Mapping
				shares         []float64
				passes         int
			}{
				{3, 64, topology.Reduce, []float64{1, 5, 2}, 1},
				{5, 400, topology.Gather, []float64{0.1, 1, 1, 3, 1}, 6},
				{1, 400, topology.Reduce, nil, 9},
				{1, 64, topology.Reduce, nil, 1},
				{5, 200, topology.Gather, []float64{0.1, 1, 1, 3, 1}, 1},
				{3, 31, topology.Gather, nil, 1},
				{16, 64, topology.Reduce, nil, 4},
				{16, 100, topology.Gather, nil, 1},
			}
			for j, c := range cuts {
				if !testlevel.Long() && (i+3*j)%8 > 2 { // three configurations per policy; each configuration runs with several policies
					continue
				}
				r := newRig(t, rigConfig{dir: goldenDir, sockets: c.sockets, mapping: c.mapping, shares: c.shares, kv: row.kv, passes: c.passes})
				got := mixed(policy)
				r.generate(c.chunk, got...)
				if !bytes.Equal(bits(t, got), bits(t, want)) {
					t.Errorf("%d sockets, %s, chunk %d: results differ from a single socket", c.sockets, c.mapping, c.chunk)
				}
			}
		})
	}
}

// TestSameBitsFamilies does the same for features of other architectures: biases with sliced rows,
// norms of heads, and experts, whose tokens are grouped differently by each batch and chunk.
func TestSameBitsFamilies(t *testing.T) {
	const policy = "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7"
	for _, name := range []string{"qwen2", "qwen3", "mistral", "mistral_window", "qwen2_window",
		"cohere2", "cohere", "cohere_qk_norm", "hunyuan_v1_dense", "seed_oss", "exaone4", "gpt_oss", "olmo3",
		"olmo2", "granite", "gemma2", "gemma3", "gemma4_31b", "gemma4_e2b", "gemma4_26b", "phi3", "phi3_longrope",
		"smollm3", "llama4", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "qwen2_moe", "glm4_moe_lite", "minimax_m2",
		"olmoe", "granitemoe", "ernie4_5_moe", "hy_v3", "hunyuan_v1_moe", "mistral3", "ernie4_5", "glm4", "glm",
		"qwen3_5", "qwen3_5_uneven", "lfm2", "granite_hybrid", "falcon_h1", "falcon_h1_norm", "nemotron_h",
		"qwen2_5_vl", "qwen3_vl_moe", "deepseek_v2", "dace"} {
		dir := filepath.Join(modelData, name)
		if name == "dace" { // bundled, latents and experts, trained
			if dir = filepath.Join("../../models", name); raceEnabled || testing.Short() {
				continue
			}
		}
		if name == "deepseek_v2" || name == "deepseek_v32" || name == "gemma2" || name == "olmo2" || name == "cohere2" ||
			name == "gpt_oss" || name == "gemma3" || name == "llama4" || strings.HasPrefix(name, "gemma4") {
			sameAsAlone(t, rigConfig{dir: dir}, "squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
				31, rigConfig{sockets: 3, mapping: topology.Reduce})
		}
		sameAsAlone(t, rigConfig{dir: dir}, policy, 31, rigConfig{sockets: 3, mapping: topology.Gather, shares: []float64{1, 4, 2}})
	}
	// Activations quantized before an exchange (layer/quantized.go): with biases, with norms after
	// attention and FFN.
	for _, name := range []string{"qwen2", "gemma3", "exaone4", "cohere", "gemma4_31b", "gemma4_e2b"} {
		sameAsAlone(t, rigConfig{dir: filepath.Join(modelData, name), weights: "q8_0"}, policy, 41,
			rigConfig{sockets: 3, mapping: topology.Gather, shares: []float64{1, 4, 2}},
			rigConfig{sockets: 4, mapping: topology.Reduce, shares: []float64{0.1, 1, 3, 1}})
	}
	for _, name := range []string{"mixtral", "qwen3_moe", "qwen3_5_moe", "qwen3_next", "lfm2_moe",
		"granite_hybrid_moe", "nemotron_h_moe", "gemma4_26b", "gpt_oss"} {
		for _, weights := range []string{"F32", "q8_0"} {
			sameAsAlone(t, rigConfig{dir: filepath.Join(modelData, name), weights: weights}, policy, 31,
				rigConfig{sockets: 3, mapping: topology.Gather, shares: []float64{1, 4, 2}},
				rigConfig{sockets: 5, mapping: topology.Reduce, shares: []float64{0.1, 1, 1, 3, 1}})
		}
	}
}

// TestIndexerThreads: an indexer chooses the same tokens when several threads score the context of one row.
func TestIndexerThreads(t *testing.T) {
	for _, name := range []string{"deepseek_v32", "glm_moe_dsa"} {
		var want []byte
		for _, threads := range []int{1, 6} {
			r := newRig(t, rigConfig{dir: filepath.Join(modelData, name), sockets: 1, mapping: topology.Gather, kv: tensor.BF16, threads: threads})
			got := mixed("full")[:2]
			for _, q := range got {
				q.arrives = 0
				r.generate(512, q)
			}
			if want == nil {
				want = bits(t, got)
			} else if !bytes.Equal(bits(t, got), want) {
				t.Errorf("%s: %d threads give other bits than one", name, threads)
			}
		}
	}
}

// TestFullStep: a step may have as many rows as a node has memory for, and its last row has all
// parts.
func TestFullStep(t *testing.T) {
	for _, name := range []string{"llama", "smollm3", "qwen3_5"} {
		dir := filepath.Join(modelData, name)
		var want []*request
		for _, sockets := range []int{1, 3} {
			got := []*request{{prompt: somePrompt(fullStep, 1), max: 1, params: greedy(5)}}
			newRig(t, rigConfig{dir: dir, sockets: sockets, mapping: topology.Gather, shares: []float64{1, 5, 2}[:sockets],
				kv: tensor.BF16}).generate(fullStep, got...)
			if want == nil {
				want = got
			}
			if !bytes.Equal(bits(t, got), bits(t, want)) {
				t.Errorf("%s: results of %d sockets differ from a single socket", name, sockets)
			}
		}
	}
}

// sameAsAlone compares the results of several clusters, with the given chunk size, with those of a
// single socket.
func sameAsAlone(t *testing.T, model rigConfig, policy string, chunk int, clusters ...rigConfig) {
	t.Helper()
	want := mixed(policy)[:5]
	model.sockets, model.mapping, model.kv = 1, topology.Reduce, tensor.BF16
	alone := newRig(t, model)
	for _, q := range want {
		q.arrives = 0
		alone.generate(512, q)
	}
	for _, c := range append(clusters, rigConfig{sockets: 1, mapping: topology.Gather}) {
		c.passes = 7
		c.dir, c.swiftKV, c.kv, c.weights = model.dir, model.swiftKV, model.kv, model.weights
		got := mixed(policy)[:5]
		newRig(t, c).generate(chunk, got...)
		if !bytes.Equal(bits(t, got), bits(t, want)) {
			t.Errorf("%s, %s: results of %d sockets, %s, with up to %d passes per step, differ from a single socket",
				model.dir, model.weights, c.sockets, c.mapping, c.passes)
		}
	}
}

// TestInt8Cache checks that int8 cache rows, rounded to a 127th of their largest element, change
// log-probabilities little.
func TestInt8Cache(t *testing.T) {
	g := readGoldens(t, goldenDir)
	r := newRig(t, rigConfig{dir: goldenDir, sockets: 2, mapping: topology.Gather, kv: tensor.Int8})
	for i, it := range g.Items {
		q := &request{prompt: it.Prompt, max: 2, owner: i, params: greedy(len(it.Logits))}
		r.generate(64, q)
		compareLogits(t, q.scores[0].Drawn[0].Top, it.Logits, int8Tolerance)
	}
}

// int8Tolerance bounds the change of a log-probability of the random model with int8 rows, relative
// to the float32 reference. float32 rows stay within 2e-3, bf16 rows within 0.03.
const int8Tolerance = 0.08

// TestSameBitsQuantized does the same for weights that are quantized during loading: the blocks of
// a row do not depend on the rank that has it.
func TestSameBitsQuantized(t *testing.T) {
	for _, m := range []struct{ dir, weights string }{
		{goldenDir, "q8_0"}, {goldenDir, "q4_0"}, {goldenDir, "iq4_nl"},
		{filepath.Join(modelData, "qwen3_moe"), "q4_0"}, {filepath.Join(modelData, "deepseek_v3"), "q8_0"},
		{filepath.Join(modelData, "deepseek_v2"), "q8_0"}, {filepath.Join(modelData, "mixtral"), "q8_0"},
	} {
		t.Run(filepath.Base(m.dir)+" "+m.weights, func(t *testing.T) {
			t.Parallel()
			base := rigConfig{dir: m.dir, sockets: 1, mapping: topology.Gather, kv: tensor.BF16, weights: m.weights}
			alone := newRig(t, base)
			want := mixed("full")[:5]
			for _, q := range want {
				q.arrives = 0
				alone.generate(512, q)
			}
			for _, c := range []rigConfig{
				{sockets: 3, mapping: topology.Reduce, shares: []float64{1, 5, 2}},
				{sockets: 5, mapping: topology.Gather},
				{sockets: 16, mapping: topology.Reduce},
				{sockets: 1, mapping: topology.Gather, threads: 40}, // more threads than panels of gate and up
				{sockets: 4, mapping: topology.Gather, threads: 12},
			} {
				c.dir, c.kv, c.weights = base.dir, base.kv, base.weights
				r := newRig(t, c)
				got := mixed("full")[:5]
				r.generate(50, got...)
				if !bytes.Equal(bits(t, got), bits(t, want)) {
					t.Errorf("%d sockets, %s: results differ from a single socket", c.sockets, c.mapping)
				}
			}
		})
	}
}

// TestSameBitsLatent does the same for latent attention with every policy, whose scores are sums
// over the query heads of all sockets, and for every cache type.
func TestSameBitsLatent(t *testing.T) {
	type row struct {
		policy string
		kv     tensor.DType
	}
	rows := []row{
		{"full", tensor.BF16},
		{"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", tensor.Int8},
		{"h2o:recent=40,topk=40,step=1,positions=cache,half=1", tensor.BF16},
	}
	if !testing.Short() {
		rows = append(rows, row{"full", tensor.Int8}, row{"streaming:sink=4,recent=60", tensor.F32},
			row{"snapkv:topk=56,obs=8,pool=5", tensor.BF16},
			row{"sage:sink=4,recent=30,topk=50", tensor.BF16}, row{"h2o:recent=40,topk=40", tensor.BF16}, row{"tova:size=80", tensor.BF16},
			row{"streaming:sink=4,recent=60,positions=cache", tensor.Int8},
			row{"snapkv:topk=56,obs=8,pool=5,votes=prefix", tensor.BF16},
			row{"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7,votes=candidates", tensor.BF16},
			row{"pyramidkv:topk=50,obs=8,pool=5,beta=4", tensor.BF16}, row{"lagkv:sink=4,lag=16,topk=70", tensor.Int8})
	}
	cuts := []rigConfig{
		{sockets: 3, mapping: topology.Reduce, shares: []float64{1, 5, 2}},
		{sockets: 3, mapping: topology.Gather},
		{sockets: 16, mapping: topology.Gather},
		{sockets: 20, mapping: topology.Reduce}, // more ranks than units of heads
	}
	for i, row := range rows {
		t.Run(fmt.Sprintf("%v:%s", row.kv, row.policy), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(modelData, "deepseek_v3")
			alone := newRig(t, rigConfig{dir: dir, sockets: 1, mapping: topology.Gather, kv: row.kv})
			want := mixed(row.policy)[:5]
			for _, q := range want {
				q.arrives = 0
				alone.generate(512, q)
			}
			for j, c := range cuts {
				if (i+j)%2 == 0 && (testing.Short() || i > 2) {
					continue
				}
				c.dir, c.kv = dir, row.kv
				got := mixed(row.policy)[:5]
				newRig(t, c).generate(31+40*j, got...)
				if !bytes.Equal(bits(t, got), bits(t, want)) {
					t.Errorf("%d sockets, %s: results differ from a single socket", c.sockets, c.mapping)
				}
			}
		})
	}
}
