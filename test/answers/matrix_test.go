package answers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// source is one model of the matrix. Those in testdata have random weights.
type source struct {
	name, dir string
	make      func(root, dir string) error // writes the checkpoint to dir; nil: it is in the tree
	types     [][2]string                  // of weights and cache; nil: all combinations
	large     bool                         // a bundled model
}

// mainTypes run in every configuration, and with long prompts too.
var mainTypes = [][2]string{{"f32", "f32"}, {"bf16", "bf16"}, {"q8_0", "int8"}}

var (
	weightTypes = []string{"f32", "bf16", "f16", "q8_0", "q4_0", "iq4_nl"}
	cacheTypes  = []string{"f32", "bf16", "int8"}
)

func checkpoints() []source {
	var all []source
	for _, name := range []string{"llama", "mistral", "mistral_window", "gemma3", "phi3", "qwen2",
		"qwen2_window", "qwen3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"} {
		all = append(all, source{name: name, dir: "internal/engine/model/testdata/" + name})
	}
	for name, shape := range modeltest.Shapes() {
		all = append(all, source{name: "random_" + name, make: func(_, dir string) error { return modeltest.Write(dir, shape, 7) },
			types: [][2]string{{"f32", "f32"}, {"bf16", "bf16"}, {"f16", "int8"}}})
	}
	all = append(all, source{name: "random_flat", make: writeFlat, types: [][2]string{{"bf16", "bf16"}, {"f32", "int8"}}})
	slices.SortFunc(all[12:], func(a, b source) int { return strings.Compare(a.name, b.name) })
	for _, name := range []string{"llama", "mixtral", "gemma3", "deepseek_v3"} {
		all = append(all, source{name: "gguf_" + name, make: func(root, dir string) error {
			return writeGGUF(filepath.Join(root, "internal/engine/model/testdata", name), dir)
		}, types: [][2]string{{"q8_0", "bf16"}}})
	}
	// families with few operations of their own
	for _, name := range []string{"granite", "olmo2", "olmo3", "exaone4", "seed_oss", "hunyuan_v1_dense", "cohere",
		"cohere_qk_norm", "cohere2", "gemma", "gemma2", "gemma4_31b", "gemma4_e2b", "gemma4_26b", "glm4_moe", "qwen2_moe",
		"mistral3", "ernie4_5", "glm4", "glm", "glm4_moe_lite", "minimax_m2", "olmoe", "granitemoe", "ernie4_5_moe", "hy_v3",
		"hunyuan_v1_moe", "smollm3", "llama4", "deepseek_v32", "glm_moe_dsa", "qwen3_5", "qwen3_5_moe", "qwen3_next",
		"lfm2", "lfm2_moe", "granite_hybrid", "granite_hybrid_moe", "falcon_h1", "nemotron_h", "nemotron_h_moe", "gpt_oss"} {
		all = append(all,
			source{name: name, dir: "internal/engine/model/testdata/" + name, types: [][2]string{{"bf16", "bf16"}, {"q8_0", "int8"}}})
	}
	for _, name := range []string{"swiftkv", "swiftkv_across"} {
		all = append(all,
			source{name: name, dir: "internal/engine/model/testdata/" + name, types: [][2]string{{"bf16", "bf16"}, {"q8_0", "int8"}}})
	}
	for _, name := range []string{"fry", "dace"} {
		all = append(all,
			source{name: name, dir: "models/" + name, types: [][2]string{{"bf16", "bf16"}, {"q8_0", "int8"}, {"iq4_nl", "bf16"}}, large: true})
	}
	return all
}

func writeGGUF(from, dir string) error {
	ck, err := checkpoint.Open(from)
	if err != nil {
		return err
	}
	file := modeltest.Convert(ck, func(string) gguf.Type { return gguf.F32 }).Bytes()
	return errors.Join(ck.Close(), os.WriteFile(filepath.Join(dir, "model.gguf"), file, 0o600))
}

// writeFlat creates a model that attends to all tokens equally because its keys are zero. Scores
// are ties, so policies use their tie-breaking rules.
func writeFlat(_, dir string) error {
	path := filepath.Join(dir, "model.safetensors")
	if err := modeltest.Write(dir, modeltest.Small(), 11); err != nil {
		return err
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	header, data := modeltest.Parts(file)
	for name, e := range header {
		if strings.Contains(name, "k_proj") {
			at := e.(map[string]any)["data_offsets"].([]any)
			clear(data[int(at[0].(float64)):int(at[1].(float64))])
		}
	}
	return os.WriteFile(path, modeltest.File(header, data), 0o600)
}

// cut is a configuration that must give the same answers.
type cut struct {
	sockets     int
	mapping     string
	shares      []float64
	step, chunk int // in tokens
	threads     int
	tight       bool // little cache memory: sequences wait, are preempted and rebuilt
	layers      bool // prompts are read layer by layer where it is possible
	device      string
}

func (c cut) String() string {
	s := fmt.Sprintf("%d nodes, %s, chunks of %d", c.sockets, c.mapping, c.chunk)
	if c.tight {
		s += ", little cache"
	}
	if c.layers {
		s += ", layer by layer"
	}
	if c.device != "" {
		s += ", on " + c.device
	}
	return s
}

var cuts = []cut{
	{sockets: 1, mapping: "gather", step: 512, chunk: 256, threads: 2},
	{sockets: 3, mapping: "gather", step: 96, chunk: 40, threads: 1},
	{sockets: 3, mapping: "reduce", shares: []float64{0.5, 0.2, 0.3}, step: 64, chunk: 17, threads: 2},
	{sockets: 2, mapping: "reduce", step: 128, chunk: 100, threads: 1, tight: true},
	{sockets: 4, mapping: "reduce", step: 64, chunk: 29, threads: 1, layers: true},
}

// policies has every registered policy, with sizes that evict within the prompts below.
var policies = []string{
	"full",
	"streaming:sink=4,recent=60",
	"snapkv:topk=70,obs=16,pool=5",
	"snapstream:sink=4,recent=30,topk=50,obs=24,pool=7",
	"sage:sink=2,recent=33,topk=64",
	"h2o:recent=40,topk=33",
	"h2o:recent=20,topk=50,step=1",
	"tova:size=90",
	"streaming:sink=3,recent=70,positions=cache",
	"streaming:sink=4,recent=65,positions=cache,half=1",
	"snapkv:topk=60,obs=16,pool=1,positions=cache",
	"snapstream:sink=4,recent=40,topk=40,obs=16,pool=3,positions=cache,half=1",
	"h2o:recent=30,topk=40,step=1,positions=cache",
	"tova:size=100,positions=cache",
	"knorm:sink=4,recent=30,topk=50",
	"quest:page=16,budget=80",
	"quest:page=32,budget=64,skip=1",
	"shadowkv:chunk=8,budget=40,outliers=5,local=2",
	"shadowkv:chunk=4,budget=32,outliers=0,local=3,int8=1,skip=1",
	"shadowkv:chunk=8,budget=24,outliers=3,local=1,keys=lowrank,rank=8",
	"shadowkv:chunk=4,budget=16,outliers=0,local=2,int8=1,skip=1,keys=lowrank,rank=16",
	"squeezed:clusters=0.1,sparsity=0.7,tail=9,obs=16",
	"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=20,obs=8,segment=64",
	"snapkv:topk=70,obs=16,pool=5,votes=prefix",
	"snapstream:sink=4,recent=20,topk=50,obs=24,pool=7,votes=candidates",
	"pyramidkv:topk=60,obs=16,pool=5,beta=4",
	"snapstream:sink=4,recent=30,topk=50,obs=24,pool=7,layers=pyramid,beta=3,positions=cache",
	"lagkv:sink=4,lag=16,topk=60",
	"snapkv:topk=60,obs=16,pool=5,ring=7",
	"loki:budget=50,dims=0.25,calib=64",
	"infinigen:alpha=1,most=0.3,dims=0.3,calib=64",
	"resnap:topk=50,every=7,obs=16,pool=5",
	"resnap:topk=60,every=5,obs=6,pool=3,positions=cache",
	"adakv:topk=70,obs=16,pool=5",
	"snapstream:sink=4,recent=20,topk=66,obs=16,pool=3,heads=ada,floor=0,positions=cache",
	"snapkv:topk=64,obs=16,pool=5,votes=prefix,layers=pyramid,beta=3,heads=ada,floor=0.2,ring=9",
	"squeezed:clusters=0.2,sparsity=0.6,tail=12,obs=16,ring=20",
	"snapstream:sink=4,recent=10,topk=28,obs=16,pool=5,recall=16",
	"sage:sink=2,recent=9,topk=30,recall=32,page=32",
	"streaming:sink=3,recent=30,recall=24",
	"shadowkv:chunk=8,budget=40,outliers=5,local=1,ring=9",
	"quest:page=16,budget=64,skip=1,ring=6",
	"loki:budget=50,dims=0.25,calib=64,ring=7",
	"infinigen:alpha=1,most=0.3,dims=0.3,calib=64,ring=5",
}

// longPolicies run with prompts of more than a thousand tokens.
var longPolicies = []string{
	"full",
	"snapstream:sink=4,recent=300,topk=900,obs=64,pool=7",
	"h2o:recent=200,topk=1000,step=1",
	"streaming:sink=4,recent=1100,positions=cache",
	"quest:page=16,budget=256",
	"shadowkv:budget=256,outliers=12,int8=1",
	"shadowkv:budget=128,outliers=8,keys=lowrank,rank=48",
	"squeezed:levels=2,segment=512",
}

// growingPolicies keep, or choose among, a growing number of tokens in decode.
var growingPolicies = []string{"full", "h2o:recent=50,topk=70,step=1", "shadowkv:chunk=8,budget=24,outliers=2,local=1"}

// growingSelectors are further such policies, which do not fit in little cache memory.
var growingSelectors = []string{"quest:page=16,budget=48", "shadowkv:chunk=4,budget=16,outliers=2,local=1,keys=lowrank,rank=8",
	"squeezed:clusters=0.25,levels=2,sparsity=0.6,tail=9,obs=16", "snapstream:sink=4,recent=10,topk=28,obs=16,pool=5,recall=16"}

// setup is a model with types.
type setup struct {
	source
	weights, kv string
	main        bool
	number      int // index of the types among the model's
}

func (s setup) String() string { return s.name + " " + s.weights + " " + s.kv }

func setups() []setup {
	var all []setup
	for _, c := range checkpoints() {
		types := c.types
		if types == nil {
			for _, w := range weightTypes {
				for _, kv := range cacheTypes {
					types = append(types, [2]string{w, kv})
				}
			}
		}
		for i, t := range types {
			main := slices.Contains(mainTypes, t) && (!c.large || i == 0)
			all = append(all, setup{source: c, weights: t[0], kv: t[1], main: main, number: i})
		}
	}
	return all
}

// grows reports whether long answers are requested, also with little cache memory.
func (s setup) grows() bool { return s.weights == "bf16" && s.kv == "bf16" }

// cutsOf returns the configurations of a setup.
func (s setup) cutsOf() []cut {
	switch {
	case *device != "":
		return []cut{{sockets: 1, mapping: "gather", step: 160, chunk: 100, threads: 2, device: *device}}
	case s.main && s.grows():
		return cuts
	case s.main:
		return append(slices.Clone(cuts[:3]), cuts[4])
	}
	return []cut{cuts[[...]int{0, 1, 2, 4}[s.number%4]]}
}

// complete returns an error for anything in the tree without a row in the matrix.
func complete(all []setup, root string) error {
	for _, u := range kvpolicy.Usage() {
		name, _, _ := strings.Cut(u, ":")
		if !slices.ContainsFunc(policies, func(p string) bool { n, _, _ := strings.Cut(p, ":"); return n == name }) {
			return fmt.Errorf("answers: policy %s has no row in policies (test/answers/matrix_test.go): add one", name)
		}
	}
	// Gemma 4's layers under another name; encoders, which make vectors
	missing := slices.DeleteFunc(model.Architectures(),
		func(a string) bool { return a == "Gemma4UnifiedForCausalLM" || strings.HasSuffix(a, "Model") })
	for _, s := range all {
		if s.make != nil {
			continue
		}
		ck, err := checkpoint.Open(filepath.Join(root, s.dir))
		if err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(a string) bool { return a == ck.Config.Architecture })
		if err := ck.Close(); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("answers: no model of %s in checkpoints (test/answers/matrix_test.go): add one", strings.Join(missing, ", "))
	}
	return nil
}
