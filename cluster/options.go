package cluster

import (
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// This file is the table of options of a cluster. A field with a help text is a row. From its tags,
// which internal/options describes, the command line makes the flag, the YAML key, the environment
// variable, the reference page and the settings of child processes. A Go program sets the field.

// ServeConfig configures the models and the scheduling of a cluster. Model is required.
type ServeConfig struct {
	// Model is the checkpoint: a Hugging Face folder or a GGUF file.
	Model string `kong:"-"`
	// SwiftKV is the folder of a SwiftKV adapter of Model; empty: none.
	SwiftKV string `kong:"-" name:"swiftkv"`
	// Weights is the type of the matrices in memory. Default: bf16 for checkpoints stored as bf16,
	// q8_0 for quantized GGUF files, the type of the form for published quantized forms, else f32. It
	// affects the bits.
	Weights string `kong:"-" name:"quant" oneof:"f32,bf16,f16,q8_0,q4_0,iq4_nl,int4,mxfp4"`

	Names           []string           `name:"model-name" placeholder:"NAME" help:"Names of the model in the API (default: the name of the folder)."`
	KV              string             `name:"kv-type" oneof:"f32,bf16,int8" placeholder:"TYPE" help:"Type of the cache: f32, bf16, int8 (default: bf16 for bf16 weights). Changes the output."`
	Shares          map[string]float64 `mapsep:"," placeholder:"NODE=X,..." help:"Relative shares of the work, by node name. The default for a node is its --share, or its measured memory bandwidth in units of 10 GB/s. It is at most twice that bandwidth, and twice the median of the other nodes."`
	Mapping         string             `default:"auto" oneof:"gather,reduce,auto" help:"How attention weights are split over the nodes: gather, reduce, auto. Does not change the output."`
	Cards           string             `default:"alone" oneof:"alone,together,all" help:"Nodes that compute when some have a graphics card: alone (one card; the other nodes are spares), together (all cards), all (cards and CPUs). Does not change the output."`
	Policy          string             `default:"full" help:"Default cache policy of requests: ${policies}. A size may be a share of the prompt, such as topk=5%."`
	LoRA            map[string]string  `name:"lora" mapsep:"none" placeholder:"NAME=FOLDER" help:"LoRA adapter that requests choose with model NAME: a folder in PEFT's format, or org/name of a hub. Repeat the flag for several. Requests with different adapters share steps."`
	LoRADir         string             `name:"lora-dir" type:"path" placeholder:"DIR" help:"Folder from which operators may load LoRA adapters with POST /v1/load_lora_adapter (default: none; the route refuses)."`
	MaxContext      int                `placeholder:"TOKENS" help:"Maximum tokens of prompt and completion together (default: the model's)."`
	StepTokens      int                `default:"512" range:"2..65536" help:"Maximum tokens in one step, for decode and prompt chunks together. A model whose attention is not causal reads whole texts, and raises the default to its context, at most 2048. Where only graphics cards compute, 512 means the largest of 512, 1024 and 2048 that suits their speed and memory."`
	Chunk           int                `range:"1..65536" placeholder:"TOKENS" help:"Maximum prompt tokens of one sequence in one step (default: 128 to 512, from the measured speed of the nodes; on graphics cards --step-tokens, as far as a step is short). Does not change the output."`
	Prefill         string             `default:"auto" oneof:"auto,chunks,layers" help:"How prompts are read under policies that drop tokens: chunks (each through all layers; the full cache of all layers must fit), layers (the whole prompt through one layer after another; memory holds one layer's full cache and the residual stream), auto (by layers when a prompt does not fit in chunks). Does not change the output."`
	PrefillOver     int                `default:"256" range:"1.." placeholder:"TOKENS" help:"With prefill nodes (--role, --prefill-nodes): prompts with more tokens than this that are not in the prefix cache are read by those nodes. Does not change the output."`
	MaxSequences    int                `range:"1..65535" placeholder:"N" help:"Maximum number of sequences with a cache in memory, below --step-tokens (default: 64)."`
	Pooling         string             `default:"auto" oneof:"auto,none,last,mean,cls" help:"Which hidden states make the vector of a text: last (of the last token), mean (of all tokens), cls (of the first token), none (no vectors), auto (from the model's files: modules.json, or pooling_type of GGUF). With last, mean or cls any model serves /v1/embeddings."`
	ScoreTokens     []string           `placeholder:"TOKEN" help:"One or two tokens that make a language model a reranker: a score is the logit of the first after the prompt, minus that of the second. yes,no for Qwen3-Reranker, which is the default for a folder of that name."`
	Replicas        int                `range:"0..1" placeholder:"N" help:"Copies of each decoding sequence's cache on other nodes, 0 or 1, in otherwise unused memory. After the loss of a node, a sequence with a copy continues without reading its prompt again (default: 0)."`
	PrefixCache     string             `default:"on" oneof:"on,shared,off" help:"Reuse the cache of prompts with a common prefix: on (within one API key), shared (across all keys), off. Uses only memory that no sequence needs. Does not change the output."`
	Speculate       string             `default:"suffix" help:"Default speculative decoding of requests: suffix (the most frequent continuation, in recent answers too), lookup (the latest continuation of the same tokens), model (suffix, or the model of --draft; the default with --draft), off. The draft length adapts; suffix:N fixes it at N. Does not change the output."`
	SpeculateRecent string             `default:"key" oneof:"key,shared,off" help:"Recent answers that --speculate suffix drafts from: key (the same API key), shared (all keys), off. With shared, the speed of an answer reveals text of other keys."`
	DecodeSteps     int                `default:"8" range:"1..16" help:"Maximum tokens that a sequence decodes before the nodes get the next plan from the coordinator, within 50 ms. With 1 they get one after every token. Does not change the output."`
	MicroBatches    string             `default:"1" oneof:"auto,1,2" help:"Micro-batches per step: 2 (one computes while the other waits for the network; the weights are read twice), 1, auto (the faster of both by measurement, tried where steps wait). Does not change the output."`
	Queue           int                `default:"1024" range:"1.." help:"Maximum number of waiting requests. Further requests get status 503."`
	StepDeadline    time.Duration      `default:"5s" range:"1ms.." help:"Time without progress in a step, while other nodes wait, after which a node is excluded temporarily. A step that takes six times this long ends the epoch."`
	LoadDeadline    time.Duration      `default:"1m" range:"1ms.." help:"Time without progress in loading weights, while other nodes progress, after which a node is excluded temporarily."`
	SyncDeadline    time.Duration      `default:"10s" range:"1ms.." help:"Time limit for a collective. A longer one fails the step."`

	// KVMemory is this model's part of the cache memory of each node in bytes, where a cluster serves
	// several models. 0: the models without it share the rest, each for the same number of tokens.
	KVMemory int64 `kong:"-" name:"kv-memory" range:"0.."`
	// Template and ToolParser replace those of APIConfig for one of several models.
	Template   string `kong:"-" name:"chat-template"`
	ToolParser string `kong:"-" name:"tool-parser"`
	// Tracer exports the timing of requests; nil: off.
	Tracer *tracing.Tracer `kong:"-"`
	Logger *slog.Logger    `kong:"-"`

	guess       func(id string, position int) []int32 // batcher.Config.Guess
	trialRounds int                                   // batcher.Config.TrialRounds
}

// Values of ServeConfig.PrefixCache.
const (
	PrefixOn     = "on"
	PrefixShared = "shared"
	PrefixOff    = "off"
)

// Process is the place of a coordinator or a node in its cluster.
type Process struct {
	ID       string   `name:"id" help:"Name of this process in the cluster: letters, digits, - and _ (default: coordinator, standby with --standby; of a node, host name and process ID)."`
	Cluster  string   `env:"SHOAL_CLUSTER" placeholder:"NAME" help:"Name of the cluster. Processes with another name cannot join, and are separate on an external NATS. A coordinator with a name prints the command that adds another machine (default: shoal, or the cluster that this machine joined)."`
	Join     []string `placeholder:"HOST:PORT" help:"Gossip addresses of a running cluster, of any of its processes; with --token, the address that the first machine printed (default: those of the cluster that this machine joined with a token)."`
	Bind     string   `env:"SHOAL_BIND" placeholder:"HOST:PORT" help:"Gossip address, which other processes join; port 0 chooses a free port. HOST is an IP address or the name of this machine; with a name, its address may change between two starts. An address other than loopback needs a cluster key (default: of a coordinator, 127.0.0.1:7070, or with --cluster the address of the default route; of a node, 127.0.0.1:0, or with a token the local address of the route to the first machine)."`
	Ports    Ports    `env:"SHOAL_PORTS" range:"1..65532" placeholder:"FIRST" help:"First of four consecutive ports on the host of --bind: control, routes, tensors, store (default: free ports)."`
	NATS     string   `name:"nats" placeholder:"URL" help:"Use an external NATS instead of the embedded mesh."`
	Insecure bool     `help:"Run without a cluster key, on loopback addresses only. Every user of this machine can then join the cluster and read its traffic."`
	DataDir  string   `env:"SHOAL_DATA_DIR" type:"path" placeholder:"DIR" help:"Folder for jobs, batches and files, which a restarted coordinator continues; of a node, for a copy of them and of the placement, which three processes replicate (default: none; a coordinator then refuses jobs)."`
}

// Resources limits the part of its machine that a node may use.
type Resources struct {
	Device           string `default:"cpu" placeholder:"cpu|auto|cuda:N" help:"Compute device: cpu, the graphics card cuda:N (shoal gpu lists them), or auto, which is the usable card with the most free memory if it serves the model and these options, and otherwise cpu. Does not change the output."`
	KVMemory         int64  `name:"kv-memory" type:"size" placeholder:"SIZE" range:"0.." help:"Memory of the caches, per node (default: 1GiB, or half of the memory limit of this machine or container divided by the nodes of this command, if that is less; on a graphics card, its free memory after weights and activations)."`
	LoRAMemory       int64  `name:"lora-memory" type:"size" default:"1GiB" range:"0.." help:"Memory for LoRA adapters, per node. When it is full, the least recently used adapter without running requests is evicted. Only loaded adapters take memory."`
	Draft            string `placeholder:"MODEL|mtp" help:"Draft model for speculative decoding: a small model with the same tokenizer (a folder, or org/name of a hub), or the model's own multi-token prediction layer (mtp, or a folder with mtp.safetensors). Every node holds all of it, and uses 1/16 of --kv-memory for its caches. Does not change the output."`
	Threads          int    `range:"1..1024" help:"Compute threads per node. Default: all CPUs, which up and demo divide evenly; decode steps use the number that measures fastest."`
	WeightsCache     string `placeholder:"DIR|off" help:"Folder for quantized weights, which makes the next start faster; off disables it (default: shoal/weights in the user's cache directory)."`
	WeightsCacheSize int64  `type:"size" default:"64GiB" help:"Maximum size of that folder. The least recently used files are removed first."`
	PrefixDisk       string `type:"path" placeholder:"DIR" help:"Folder for the prefix cache on disk, which outlives eviction from memory and restarts. Its files hold the text of users, unencrypted. Does not change the output (default: none)."`
	PrefixDiskSize   int64  `type:"size" default:"64GiB" help:"Maximum size of that folder, for all nodes of this command together."`
	KVDisk           string `name:"kv-disk" type:"path" placeholder:"DIR" help:"Folder for cache rows of long sequences when memory is short, for policies that read few rows (shadowkv, quest, squeezed, recall=N), and for the caches of idle sessions, which survive restarts. Its files hold the text of users, unencrypted. Those of sessions are removed with the session, the others with the process. Does not change the output (default: none)."`
	KVDiskSize       int64  `name:"kv-disk-size" type:"size" default:"64GiB" help:"Maximum size of these files, for all nodes of this command together."`
}

// microBatches returns the number of MicroBatches, or 0 for auto.
func (c *ServeConfig) microBatches() int {
	n, _ := strconv.Atoi(c.MicroBatches)
	return n
}

func (c *ServeConfig) ensureDefaults(m *model.Config) {
	if len(c.Names) == 0 {
		c.Names = []string{layout.NameOf(c.Model)}
	}
	weights, kv := tensor.F32, tensor.F32
	switch m.DType {
	case tensor.BF16, tensor.Q8_0, tensor.Int4, tensor.MXFP4:
		weights, kv = m.DType, tensor.BF16
	}
	options.SetDefaults(c)
	orDefault(&c.Weights, weights.String())
	orDefault(&c.KV, kv.String())
	if m.NonCausal && c.StepTokens == defaultStep { // a step reads whole texts
		c.StepTokens = max(defaultStep, min(m.MaxPositions, wholeStep))
	}
	context := m.MaxPositions
	if m.NonCausal {
		context = min(context, c.StepTokens)
	}
	orDefault(&c.MaxContext, context)
	orDefault(&c.MaxSequences, min(64, max(1, c.StepTokens-1)))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

const (
	defaultStep = 512  // of ServeConfig.StepTokens
	wholeStep   = 2048 // the most that a model which is not causal raises it to
)

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate checks a config with defaults filled in.
func (c *ServeConfig) Validate(m *model.Config) error {
	if err := options.Check(c); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if _, err := kvpolicy.Parse(c.Policy); err != nil {
		return fmt.Errorf("cluster: %s: %w", options.Name("policy"), err)
	}
	if _, err := speculate.Parse(c.Speculate); err != nil {
		return fmt.Errorf("cluster: %s: %w", options.Name("speculate"), err)
	}
	for id, s := range c.Shares {
		if !(s > 0) || math.IsInf(s, 1) {
			return fmt.Errorf("cluster: %s: the share of node %s is %v: want a number above zero", options.Name("shares"), id, s)
		}
	}
	switch {
	case c.MaxContext < 2 || c.MaxContext > m.MaxPositions:
		return fmt.Errorf("cluster: %s %d: want 2 to %d tokens, which the model supports", options.Name("max-context"), c.MaxContext,
			m.MaxPositions)
	case m.NonCausal && c.MaxContext > c.StepTokens:
		return fmt.Errorf("cluster: %s %d: attention of this model is not causal, so one step reads a whole text: want at most %s, %d",
			options.Name("max-context"), c.MaxContext, options.Name("step-tokens"), c.StepTokens)
	case c.Chunk > c.StepTokens:
		return fmt.Errorf("cluster: %s %d: want 1 to %s, %d, or 0 for the planner's choice", options.Name("chunk"), c.Chunk,
			options.Name("step-tokens"), c.StepTokens)
	case c.MaxSequences >= c.StepTokens:
		return fmt.Errorf("cluster: %s %d: want at least 1 and less than %s, %d", options.Name("max-sequences"), c.MaxSequences,
			options.Name("step-tokens"), c.StepTokens)
	}
	return nil
}
