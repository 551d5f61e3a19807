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

	"github.com/shoal-llm/shoal/actors/socket"
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

// ServeConfig says what a cluster serves and how it schedules.
type ServeConfig struct {
	// Model is the checkpoint: a Hugging Face folder, or a GGUF file.
	Model string
	// SwiftKV is the folder of a SwiftKV adapter of Model; empty: none.
	SwiftKV string
	// Names are the model names of the API. Default: the folder's or file's name.
	Names []string
	// Weights is the type that matrices are held in. Default: bf16 for
	// checkpoints stored so, q8_0 for quantised GGUF files, else f32. It is part of what decides the bits.
	Weights string
	// KV is the type of the cache: f32, bf16, or int8 with a scale per row of a head.
	// Default bf16 where the weights are. It is part of what decides the bits.
	KV string
	// Mapping is gather, reduce or auto (the planner chooses). Never changes a bit.
	Mapping string
	// Shares are those of nodes by name, in any unit; what a node says of itself counts
	// only where its name is missing, and then within bounds.
	Shares map[string]float64
	// Policy is the cache policy of requests that name none. Default full.
	Policy string
	// MaxContext bounds prompt and completion together. Default: the model's.
	MaxContext int
	// StepTokens is the token budget of one step. Default 512.
	StepTokens int
	// Chunk is the most prompt tokens of one sequence in one step; 0: the planner chooses. Never
	// changes a bit.
	Chunk int
	// MaxSequences bounds the sequences that hold memory at once; below StepTokens,
	// so that prompts are read beside them. Default 64.
	MaxSequences int
	// Replicas is how many copies of each decoding sequence's cache other nodes keep,
	// 0 or 1, in memory under KVMemory that no sequence needs.
	Replicas int
	// PrefixCache says whether a prompt may begin with what another has read: on, among
	// requests of one API key; shared, among all; off. Never changes a bit. Default on.
	PrefixCache string
	// Speculate is how drafts are made for requests that do not say: off, lookup, suffix.
	// Default suffix. Never changes a bit.
	Speculate string
	// SpeculateRecent says which recent outputs are drafted from as well: those of the same
	// API key (key), of all (shared), none (off). Default key.
	SpeculateRecent string
	// DecodeSteps is how many tokens each sequence decodes for one plan at most, as far as that takes no
	// longer than 50 ms, so that the way to the coordinator and back is paid once. Never changes a bit. Default 8.
	DecodeSteps int
	// TrialRounds is how often each number of threads is tried for steps of a kind; 0: as the batcher has it.
	TrialRounds int
	// Tracer is told where the time of requests goes; nil: nobody is.
	Tracer *tracing.Tracer
	// Queue bounds the requests that wait; beyond it clients get 503. Default 1024.
	Queue int
	// StepDeadline is how long a node may make no progress in a step while the
	// others wait for it, before it is left out. A whole step may take six times as
	// long before the epoch is given up. Default 5 s.
	StepDeadline time.Duration
	// LoadDeadline is how long a node may make no progress in loading its weights
	// while others do, before it is left out. Default 1 min.
	LoadDeadline time.Duration
	// SyncDeadline is how long one collective may take. Default 10 s.
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

// Validate says what is wrong with a filled-in config.
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
		return fmt.Errorf("cluster: --max-context %d: the model was made for 2 to %d tokens", c.MaxContext, m.MaxPositions)
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

// Check says what is wrong with the settings of a server, before anything of it starts: s for
// its checkpoint, template and tool parser of a, and the memory of each node's caches in bytes.
// It does not read weights. It returns s with the defaults filled in.
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
	geometry := socket.GeometryOf(&ck.Config, kv)
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

// APIConfig is what the HTTP side adds.
type APIConfig struct {
	Keys   []api.Key
	Audit  *slog.Logger
	TLS    *tls.Config
	Strict bool // refuse parameters that are not known
	// AllowOrigins are the origins whose web pages may use the API, besides its own.
	AllowOrigins []string
	Template     string // a file with a chat template, instead of the checkpoint's
	ToolParser   string // a toolcall.Family; "": by the template
	Version      string
	Logger       *slog.Logger
}

// NewAPI puts the OpenAI API in front of an engine: tokenizer, chat template
// and sampling defaults come from the checkpoint.
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

// modelCard describes the checkpoint to clients that ask for its size and shape.
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

// fingerprint names what decides the bits of an answer besides the request.
func fingerprint(ck *model.Checkpoint, s *ServeConfig) string {
	print := fmt.Sprintf("shoal-%.12s-%s-%s", ck.Hash(), s.Weights, s.KV)
	if tensor.Arithmetic > 1 { // the first one was not named
		print += fmt.Sprintf("-a%d", tensor.Arithmetic)
	}
	return print
}

// Identify fills in what a server of this checkpoint would serve it with, and
// returns the name and the system fingerprint that it would answer under.
func Identify(ck *model.Checkpoint, s *ServeConfig) (name, print string) {
	s.ensureDefaults(&ck.Config)
	return s.Names[0], fingerprint(ck, s)
}
