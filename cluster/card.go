package cluster

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/accelerator"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/topology"
)

// Values of Resources.Device besides cuda:N.
const (
	DeviceAuto = "auto"
	DeviceCPU  = "cpu"
	cardPrefix = "cuda:"
)

const noCard = -1

// onCard returns the number of the card in Device, or noCard. Commands resolve auto before they set
// Device; elsewhere auto means the CPU.
func (r *Resources) onCard() int {
	if n, ok := CardIndex(r.Device); ok {
		return n
	}
	return noCard
}

// CardIndex returns the number of a card in a device's name.
func CardIndex(device string) (index int, ok bool) {
	if text, ok := strings.CutPrefix(device, cardPrefix); ok {
		if n, err := strconv.ParseUint(text, 10, 8); err == nil {
			return int(n), true
		}
	}
	return 0, false
}

func (r *Resources) checkDevice() error {
	if r.Device == "" || r.Device == DeviceAuto || r.Device == DeviceCPU || r.onCard() != noCard {
		return nil
	}
	return fmt.Errorf("%s %q: want %s, %s or %sN, such as %s0",
		options.Name("device"), r.Device, DeviceAuto, DeviceCPU, cardPrefix, cardPrefix)
}

// CardServes has the settings that determine how much memory of a card a model takes.
type CardServes struct {
	Weights    string `hidden:"" help:"Type of the weights."`
	KV         string `hidden:"" name:"kv" help:"Type of the caches."`
	StepTokens int    `hidden:"" help:"Rows of a step, or 512 to choose."`
	Context    int    `hidden:"" help:"Longest sequence in tokens."`
}

// CardServesOf does the same for a cluster.
func CardServesOf(s *ServeConfig) CardServes {
	return CardServes{s.Weights, s.KV, s.StepTokens, s.MaxContext}
}

// CardMemory is the memory of a card that a node needs, in bytes.
type CardMemory struct {
	Weights, Activations, Caches, Margin int64
	Free                                 int64 // before the node starts
	StepTokens                           int   // rows of a step that the activations are for
}

// ErrCardMemory means that a card has too little free memory.
var ErrCardMemory = errors.New("too little free memory on the card")

// leastCardCaches is the minimum memory of caches with which a card starts by default.
const leastCardCaches = 64 << 20

// activationPart limits activations of more than defaultStep rows to a part of the free memory.
const activationPart = 16

// Plan divides the free memory of a card for a model. caches are the bytes that the operator gives
// them. With 0 they take the rest after weights, activations and a margin. If StepTokens is the default, a step has
// more rows where the memory allows it.
func (s CardServes) Plan(c *model.Config, caches, free int64) (CardMemory, error) {
	if s.StepTokens == defaultStep {
		for _, rows := range slices.Backward(topology.CardRows[:]) {
			larger := s
			larger.StepTokens = rows
			m, err := larger.plan(c, caches, free)
			if err == nil && m.Activations <= free/activationPart {
				return m, nil
			}
		}
	}
	return s.plan(c, caches, free)
}

// growth multiplies the booked activations. The surplus is for memory that grows in use: states of attention,
// attention that policies observe, and parts of activations of several ranks.
const growth = 2

// plan is Plan for a given number of rows.
func (s CardServes) plan(c *model.Config, caches, free int64) (CardMemory, error) {
	weights, err := tensor.ParseDType(s.Weights)
	if err != nil {
		return CardMemory{}, err
	}
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return CardMemory{}, err
	}
	if err := accelerator.Supports(c, weights); err != nil {
		return CardMemory{}, err
	}
	if most := accelerator.MostRows(c); s.StepTokens > most {
		return CardMemory{}, fmt.Errorf("a card computes at most %d rows of this model in a step, not %d: lower %s",
			most, s.StepTokens, options.Name("step-tokens"))
	}
	place, err := topology.Place(1, topology.Gather, shard.ShapeOf(c), []topology.Member{{ID: "card", Share: 1}})
	if err != nil {
		return CardMemory{}, err
	}
	m := CardMemory{
		Weights:     shard.Bytes(c, place, 0, weights),
		Activations: growth * accelerator.ActivationBytes(layer.DimsOf(c), s.StepTokens, s.Context),
		Margin:      card.Margin, Free: free, StepTokens: s.StepTokens,
	}
	rest := free - m.Weights - m.Activations - m.Margin
	block := c.CacheLayout(kv).BlockBytes()
	if m.Caches = caches; caches == 0 {
		for m.Caches = rest; m.Caches > 0 && memory.MappedBytes(m.Caches, block) > rest; {
			m.Caches -= memory.MappedBytes(m.Caches, block) - rest
		}
	}
	if m.Caches < leastCardCaches && caches == 0 || memory.MappedBytes(m.Caches, block) > max(rest, 0) {
		return m, fmt.Errorf("%w: weights as %v need %s, activations %s and a margin %s of %s free, "+
			"which leaves %s for caches: choose a smaller type with %s, lower %s, or use %s %s",
			ErrCardMemory, weights, options.SizeText(m.Weights), options.SizeText(m.Activations), options.SizeText(m.Margin),
			options.SizeText(free), options.SizeText(max(rest, 0)),
			options.Name("quant"), options.Name("kv-memory"), options.Name("device"), DeviceCPU)
	}
	return m, nil
}

// CPUComputes is the message of a log line with the reason why auto means the CPU.
const CPUComputes = "the CPU computes, not a graphics card"

// openCard opens the card that a node computes on, with memory for its caches; nil: the CPU computes.
// An error of the driver during a step ends the process: the contents of the card are lost, and other
// nodes continue.
func openCard(cfg *NodeConfig, models []*nodeModel) (*accelerator.Device, error) {
	index := cfg.onCard()
	if index == noCard {
		return nil, nil
	}
	d, err := useCard(index, cfg, models)
	if err != nil && cfg.CPUCaches > 0 {
		cfg.Logger.Info(CPUComputes, "device", DeviceAuto, "reason", err)
		cfg.Device, cfg.KVMemory = DeviceCPU, cfg.CPUCaches
		return nil, nil
	}
	return d, err
}

// muchOfCard is the memory of other processes on a card that a node warns of. A context of this process
// takes up to half of it.
const muchOfCard = 1 << 30

func useCard(index int, cfg *NodeConfig, models []*nodeModel) (*accelerator.Device, error) {
	if len(models) > 1 {
		return nil, fmt.Errorf("cluster: %s %s: a card serves one model, and this cluster has %d: serve one, or use %s %s",
			options.Name("device"), cfg.Device, len(models), options.Name("device"), DeviceCPU)
	}
	c := &models[0].checkpoint.Config
	if err := accelerator.Supports(c, tensor.BF16); err != nil { // for every type of the weights
		return nil, fmt.Errorf("cluster: %s %s: %w", options.Name("device"), cfg.Device, err)
	}
	if models[0].draftWord != "" {
		return nil, fmt.Errorf("cluster: %s %s: a draft model is not computed on a card: remove %s",
			options.Name("device"), cfg.Device, options.Name("draft"))
	}
	k, err := card.Open(index, card.Options{Fail: func(err error) {
		cfg.Logger.Error("the graphics card failed: this process ends, and other nodes continue its work", "device", cfg.Device, "error", err)
		os.Exit(cardFailed)
	}, Slow: func(function string, took time.Duration) {
		cfg.Logger.Warn("the graphics card's driver does not return from a call", "device", cfg.Device, "call", function, "after", took)
	}})
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", options.Name("device"), cfg.Device, err)
	}
	d, err := divideCard(k, cfg, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: %s %s: %w", options.Name("device"), cfg.Device, err), k.Close())
	}
	return d, nil
}

// divideCard sets the node's memory of caches to the part of the card's memory that they get.
func divideCard(k *card.Card, cfg *NodeConfig, c *model.Config) (*accelerator.Device, error) {
	free, total, err := k.MemoryInfo()
	if err != nil {
		return nil, err
	}
	serves := cfg.Serves
	if serves == (CardServes{}) {
		serves = CardServes{c.DType.String(), tensor.BF16.String(), defaultStep, min(c.MaxPositions, defaultCardContext)}
	}
	m, err := serves.Plan(c, cfg.KVMemory, free)
	if err != nil {
		return nil, fmt.Errorf("%w (the card has %s, and other processes hold %s of it)", err,
			options.SizeText(total), options.SizeText(total-free))
	}
	cfg.cardStep = shortStep(k, c, serves.Weights, m.StepTokens)
	if total-free > muchOfCard {
		cfg.Logger.Warn("other processes use the graphics card: they share its speed and its memory", "device", cfg.Device, "bytes", total-free)
	}
	d, err := accelerator.New(k, m.Caches, c.CacheLayout(tensor.F32), c.CacheLayout(tensor.BF16), c.CacheLayout(tensor.Int8))
	if err == nil {
		cfg.KVMemory = m.Caches
		cfg.Logger.Info("computing on a graphics card", "device", cfg.Device, "card", k.Name, "free_bytes", free,
			"weight_bytes", m.Weights, "activation_bytes", m.Activations, "step_tokens", cfg.cardStep, "kv_budget_bytes", m.Caches)
	}
	return d, err
}

// Multiply-adds of prompts by clock and multiprocessor, for the speed of whole steps. An H200 has 190 with Q8_0.
const (
	quantizedRate = 190
	floatRate     = 60
)

// shortStep returns the tokens of a step that a card computes in a short time. most is the limit.
func shortStep(k *card.Card, c *model.Config, weights string, most int) int {
	rate := quantizedRate
	if t, err := tensor.ParseDType(weights); err == nil && !kernel.Quantized(t) {
		rate = floatRate
	}
	shape := shard.ShapeOf(c)
	return shape.ShortCardStep(float64(rate*k.Multiprocessors)*float64(k.Clock)*1e6, most)
}

// cardFailed is the status of a process whose card failed.
const cardFailed = 4

// defaultCardContext is the longest sequence for which a node reserves memory of attention if the
// served context is unknown.
const defaultCardContext = 32 << 10

// cardPolicy parses a cache policy that a card computes.
func cardPolicy(spec string) (*kvcache.Policy, error) {
	p, err := kvpolicy.Parse(spec)
	if err == nil {
		err = accelerator.Policy(p)
	}
	return p, err
}

// CardComputes reports whether a card keeps caches of a policy. Other code refuses a text that is not a policy.
func CardComputes(policy string) bool {
	p, err := kvpolicy.Parse(policy)
	return err != nil || accelerator.Policy(p) == nil
}

// cardKeeps returns an error if a card serves and keeps no caches of the policy.
func (c *core) cardKeeps(p *kvcache.Policy) error {
	if g := c.group(); g != nil && slices.ContainsFunc(g.Nodes, func(n topology.Node) bool { return n.Device != "" }) {
		return accelerator.Policy(p)
	}
	return nil
}
