package cluster

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
	"github.com/shoal-llm/shoal/internal/tracing"
	"github.com/shoal-llm/shoal/topology"
)

// ServeConfig configures what a cluster serves and how it schedules.
type ServeConfig struct {
	// Model is the checkpoint: a Hugging Face folder or a GGUF file.
	Model string
	// SwiftKV is the folder of a SwiftKV adapter of Model; empty: none.
	SwiftKV string
	// Names are the model names in the API. Default: the name of the folder or file.
	Names []string
	// Weights is the type of the matrices in memory. Default: bf16 for checkpoints stored as bf16,
	// q8_0 for quantized GGUF files, else f32. It affects the bits.
	Weights string
	// KV is the type of the cache: f32, bf16, or int8 with a scale per row of a head. Default: bf16
	// if the weights are bf16. It affects the bits.
	KV string
	// Mapping is gather, reduce or auto (the planner chooses). It never changes a bit.
	Mapping string
	// Shares has the shares of nodes by name, in any unit. A node without an entry uses its own
	// value, within bounds.
	Shares map[string]float64
	// Policy is the cache policy of requests that name none. Default full.
	Policy string
	// MaxContext is the maximum length of prompt and completion together. Default: the model's.
	MaxContext int
	// StepTokens is the token budget of one step. Default 512.
	StepTokens int
	// Chunk is the maximum number of prompt tokens of one sequence per step; 0: the planner
	// chooses. It never changes a bit.
	Chunk int
	// MaxSequences is the maximum number of sequences that hold memory at once. It is below
	// StepTokens, so that prompts can be read at the same time. Default 64.
	MaxSequences int
	// Replicas is the number of copies that other nodes keep of the cache of each decoding
	// sequence, 0 or 1. Copies use only memory within KVMemory that no sequence needs.
	Replicas int
	// PrefixCache selects the requests that may share cached prompt prefixes: on (those of one API
	// key), shared (all) or off. It never changes a bit. Default on.
	PrefixCache string
	// Speculate is the default draft method: off, lookup or suffix. It never changes a bit. Default
	// suffix.
	Speculate string
	// SpeculateRecent selects the recent outputs that drafts may also use: those of the same API
	// key (key), of all (shared), or none (off). Default key.
	SpeculateRecent string
	// DecodeSteps is the maximum number of tokens that a sequence decodes per plan, as long as that
	// takes at most 50 ms. It saves round trips to the coordinator. It never changes a bit. Default
	// 8.
	DecodeSteps int
	// TrialRounds is how often each thread count is tried for steps of a kind; 0: the batcher's
	// default.
	TrialRounds int
	// Tracer exports the timing of requests; nil: off.
	Tracer *tracing.Tracer
	// Queue is the maximum number of waiting requests. Further ones get 503. Default 1024.
	Queue int
	// StepDeadline is how long a node may make no progress in a step while the others wait for it,
	// before it is left out. A whole step may take six times as long before the epoch ends. Default
	// 5 s.
	StepDeadline time.Duration
	// LoadDeadline is how long a node may make no progress in loading its weights while others do,
	// before it is left out. Default 1 min.
	LoadDeadline time.Duration
	// SyncDeadline is the deadline of one collective. Default 10 s.
	SyncDeadline time.Duration
	Logger       *slog.Logger

	guess func(id string, position int) []int32 // batcher.Config.Guess
}

// Values of ServeConfig.PrefixCache.
const (
	PrefixOn     = "on"
	PrefixShared = "shared"
	PrefixOff    = "off"
)

func (c *ServeConfig) ensureDefaults(m *model.Config) {
	if len(c.Names) == 0 {
		c.Names = []string{layout.NameOf(c.Model)}
	}
	weights, kv := tensor.F32, tensor.F32
	switch m.DType {
	case tensor.BF16, tensor.Q8_0:
		weights, kv = m.DType, tensor.BF16
	}
	orDefault(&c.Weights, weights.String())
	orDefault(&c.KV, kv.String())
	orDefault(&c.Mapping, "auto")
	orDefault(&c.PrefixCache, PrefixOn)
	orDefault(&c.Policy, "full")
	orDefault(&c.Speculate, string(speculate.Suffix))
	orDefault(&c.SpeculateRecent, "key")
	orDefault(&c.MaxContext, m.MaxPositions)
	orDefault(&c.StepTokens, 512)
	orDefault(&c.MaxSequences, min(64, max(1, c.StepTokens-1)))
	orDefault(&c.DecodeSteps, 8)
	orDefault(&c.Queue, 1024)
	orDefault(&c.StepDeadline, 5*time.Second)
	orDefault(&c.LoadDeadline, time.Minute)
	orDefault(&c.SyncDeadline, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate checks a config with defaults filled in.
func (c *ServeConfig) Validate(m *model.Config) error {
	if dt, err := tensor.ParseDType(c.Weights); err != nil || dt == tensor.Int8 {
		return fmt.Errorf("cluster: --quant %q: known are f32, bf16, f16, q8_0, q4_0, iq4_nl", c.Weights)
	}
	if kv, err := tensor.ParseDType(c.KV); err != nil || (kv != tensor.F32 && kv != tensor.BF16 && kv != tensor.Int8) {
		return fmt.Errorf("cluster: --kv-type %q: known are f32, bf16, int8", c.KV)
	}
	if c.PrefixCache != PrefixOn && c.PrefixCache != PrefixShared && c.PrefixCache != PrefixOff {
		return fmt.Errorf("cluster: --prefix-cache %q: known are on, shared, off", c.PrefixCache)
	}
	if _, err := topology.ParseMapping(c.Mapping); err != nil && c.Mapping != "auto" {
		return fmt.Errorf("%w, auto", err)
	}
	if _, err := kvcache.Parse(c.Policy); err != nil {
		return fmt.Errorf("cluster: --policy: %w", err)
	}
	if _, err := speculate.Parse(c.Speculate); err != nil {
		return fmt.Errorf("cluster: --speculate: %w", err)
	}
	if !slices.Contains([]string{"key", "shared", "off"}, c.SpeculateRecent) {
		return fmt.Errorf("cluster: --speculate-recent %q: known are key, shared, off", c.SpeculateRecent)
	}
	for id, s := range c.Shares {
		if !(s > 0) || math.IsInf(s, 1) {
			return fmt.Errorf("cluster: the share of %s is %v: want a number above zero", id, s)
		}
	}
	switch {
	case c.MaxContext < 2 || c.MaxContext > m.MaxPositions:
		return fmt.Errorf("cluster: --max-context %d: the model supports 2 to %d tokens", c.MaxContext, m.MaxPositions)
	case c.StepTokens < 2 || c.StepTokens > 1<<16:
		return fmt.Errorf("cluster: --step-tokens %d: want 2 to %d", c.StepTokens, 1<<16)
	case c.Chunk < 0 || c.Chunk > c.StepTokens:
		return fmt.Errorf("cluster: --chunk %d: want 1 to --step-tokens, %d, or 0 for the planner's choice", c.Chunk, c.StepTokens)
	case c.Replicas < 0 || c.Replicas > 1:
		return fmt.Errorf("cluster: --replicas %d: want 0 or 1", c.Replicas)
	case c.MaxSequences < 1 || c.MaxSequences >= c.StepTokens:
		return fmt.Errorf("cluster: --max-sequences %d: want at least 1 and less than --step-tokens, %d", c.MaxSequences, c.StepTokens)
	case c.DecodeSteps < 1 || c.DecodeSteps > 1+speculate.Most:
		return fmt.Errorf("cluster: --decode-steps %d: want 1 to %d", c.DecodeSteps, 1+speculate.Most)
	case c.Queue < 1:
		return fmt.Errorf("cluster: --queue %d: want at least 1", c.Queue)
	case min(c.StepDeadline, c.LoadDeadline, c.SyncDeadline) < time.Millisecond:
		return fmt.Errorf("cluster: --step-deadline %v, --load-deadline %v, --sync-deadline %v: want at least 1ms of each", c.StepDeadline, c.LoadDeadline, c.SyncDeadline)
	}
	return nil
}

// Check checks the settings of a server before any part of it starts: s for its checkpoint,
// template and tool parser of a, and the cache memory per node in bytes. It reads no weights. It
// returns s with the defaults filled in.
func Check(s ServeConfig, a APIConfig, caches int64) (ServeConfig, error) {
	ck, err := model.OpenSwiftKV(s.Model, s.SwiftKV)
	if err != nil {
		return s, err
	}
	defer ck.Close()
	s.ensureDefaults(&ck.Config)
	if err := s.Validate(&ck.Config); err != nil {
		return s, err
	}
	policy, err := kvcache.Parse(s.Policy)
	if err != nil {
		return s, err
	}
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return s, err
	}
	geometry := shard.GeometryOf(&ck.Config, kv)
	if err := geometry.Fits(policy); err != nil {
		return s, err
	}
	if least := kvcache.ResidentBytes(geometry, 1, 1, policy); caches < least {
		return s, fmt.Errorf("cluster: --kv-memory %d: the caches of the shortest request take %d bytes of a node", caches, least)
	}
	if a.ToolParser != "" && !slices.Contains(toolcall.Families, toolcall.Family(a.ToolParser)) {
		return s, fmt.Errorf("cluster: --tool-parser %q: known are %v", a.ToolParser, toolcall.Families)
	}
	_, err = chatTemplate(ck.Dir, a.Template)
	return s, err
}

// Engine is what NewAPI serves: a Coordinator or a Local.
type Engine interface {
	api.Engine
	CacheBytes(policy string, prompt, output int) (bytes, full int64)
}

// APIConfig has the settings of the HTTP API.
type APIConfig struct {
	Keys   []api.Key
	Audit  *slog.Logger
	TLS    *tls.Config
	Strict bool // refuse unknown parameters
	// AllowOrigins are the additional origins whose web pages may use the API.
	AllowOrigins []string
	Template     string // file with a chat template that replaces the checkpoint's
	ToolParser   string // a toolcall.Family; "": derived from the template
	Version      string
	Logger       *slog.Logger
}

// NewAPI creates the HTTP API of an engine. Tokenizer, chat template and sampling defaults come
// from the checkpoint.
func NewAPI(e Engine, ck *model.Checkpoint, s ServeConfig, a APIConfig) (*api.Server, error) {
	s.ensureDefaults(&ck.Config)
	for _, w := range ck.Config.Warnings {
		s.Logger.Warn("model config", "warning", w)
	}
	tok, err := tokenizer.Load(ck.Dir)
	if err != nil {
		return nil, err
	}
	for _, w := range tok.Warnings() {
		s.Logger.Warn("tokenizer", "warning", w)
	}
	cfg := api.Config{Models: s.Names, ModelRoot: ck.Dir, MaxModelLen: s.MaxContext, VocabSize: ck.Config.Vocab, EOSTokens: ck.Config.EOS,
		CacheBytes: e.CacheBytes, Keys: a.Keys, Audit: a.Audit, TLS: a.TLS, Strict: a.Strict, AllowOrigins: a.AllowOrigins, Tracer: s.Tracer, Version: a.Version, Logger: a.Logger,
		SystemFingerprint: fingerprint(ck, &s)}
	files, err := tokenizer.ReadFiles(ck.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.TokenizerConfig, err = files.Info(); err != nil {
		return nil, err
	}
	cfg.ToolParser = a.ToolParser
	cfg.Card = modelCard(ck, &s)
	if err := samplingDefaults(ck.Dir, &cfg); err != nil {
		return nil, err
	}
	template, err := chatTemplate(ck.Dir, a.Template)
	if err != nil {
		return nil, err
	}
	return api.New(cfg, e, api.FromTokenizer(tok), template)
}

// modelCard describes the checkpoint for clients that query its size and architecture.
func modelCard(ck *model.Checkpoint, s *ServeConfig) api.ModelCard {
	c := &ck.Config
	card := api.ModelCard{Format: "safetensors", Quantization: strings.ToUpper(s.Weights), Digest: ck.Hash(),
		Architecture: strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(c.Architecture, "ForCausalLM"), "ForConditionalGeneration")),
		Layers:       c.Layers, Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, FFN: c.FFN}
	card.Parameters, card.Bytes = ck.Size()
	files := ck.Files()
	if len(files) > 0 && strings.EqualFold(filepath.Ext(files[0]), ".gguf") {
		card.Format = "gguf"
	}
	for _, path := range files {
		if st, err := os.Stat(path); err == nil && st.ModTime().After(card.Modified) {
			card.Modified = st.ModTime()
		}
	}
	return card
}

// fingerprint identifies everything except the request that determines the bits of an answer.
func fingerprint(ck *model.Checkpoint, s *ServeConfig) string {
	print := fmt.Sprintf("shoal-%.12s-%s-%s", ck.Hash(), s.Weights, s.KV)
	if tensor.Arithmetic > 1 { // version 1 had no suffix
		print += fmt.Sprintf("-a%d", tensor.Arithmetic)
	}
	return print
}

// Identify fills in the defaults for a checkpoint and returns the model name and the system
// fingerprint of its answers.
func Identify(ck *model.Checkpoint, s *ServeConfig) (name, print string) {
	s.ensureDefaults(&ck.Config)
	return s.Names[0], fingerprint(ck, s)
}
