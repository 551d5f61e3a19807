package bench

import (
	"fmt"
	"math/bits"
	"strconv"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// PlanModel is a model for planning: its config without weights.
type PlanModel struct {
	Name       string
	Config     model.Config
	Parameters int64 // parameters of one forward pass; the embedding counts once
}

// PlanModelOf computes the sizes of a config.
func PlanModelOf(name string, c *model.Config) PlanModel {
	m := PlanModel{Name: name, Config: *c}
	for _, s := range c.Tensors() {
		n := int64(1)
		for _, d := range s.Shape {
			n *= int64(d)
		}
		m.Parameters += n
	}
	return m
}

// row returns the approximate number of floats of a token's activations in a step.
func (m *PlanModel) row() int {
	c := &m.Config
	attention := 0
	for i := range c.Layers {
		s := c.KVOf(i)
		attention = max(attention, 2*c.Heads*s.Dim+2*s.Heads*s.Dim)
	}
	if l := c.Latent; l.Rank > 0 {
		// absorbed queries, attention's results on latents, values
		attention = c.Heads*(c.HeadDim+l.Row()+l.Rank+l.Value) + l.Index.Heads*l.Index.Dim
	}
	return 3*c.Hidden + attention + 2*max(c.FFNOf(max(0, c.Layers-1)), c.MoE.PerToken*c.MoE.FFN+c.MoE.Shared)
}

// PlanOptions describes the cluster to plan for.
type PlanOptions struct {
	Sockets  int
	Memory   int64 // total memory of one socket
	Weights  tensor.DType
	KV       tensor.DType
	Mapping  topology.Mapping
	Rows     int   // token budget of a step
	Contexts []int // in tokens; none: DefaultContexts
	Ratio    int   // SnapStream keeps 1/Ratio of a context
}

// Plan is the result of RunPlan: the memory of a cluster and the sequences that fit.
type Plan struct {
	Model          string    `json:"model"`
	Parameters     int64     `json:"parameters"`
	Sockets        int       `json:"sockets"`
	Memory         int64     `json:"memory_bytes"`
	Mapping        string    `json:"mapping"`
	WeightType     string    `json:"weight_type"`
	KVType         string    `json:"kv_type"`
	WeightBytes    int64     `json:"weight_bytes"`    // per socket
	EmbeddingBytes int64     `json:"embedding_bytes"` // mapped, per socket
	WorkspaceBytes int64     `json:"workspace_bytes"` // activations and logits, per socket
	CacheBytes     int64     `json:"cache_bytes"`     // memory left for caches, per socket; negative: does not fit
	TokenBytes     int64     `json:"cache_bytes_per_token"`
	Rows           []PlanRow `json:"rows"`
}

// PlanRow is one context length.
type PlanRow struct {
	Context    int       `json:"context"`
	Compressed int       `json:"compressed"`
	Full       PlanBatch `json:"full"`
	SnapStream PlanBatch `json:"snapstream"`
}

// PlanBatch is how many sequences decode together. A sequence is on one socket, so Most and Batch are
// multiples of the number of sockets.
type PlanBatch struct {
	Policy string `json:"policy"`
	Bytes  int64  `json:"bytes_per_sequence"`
	Most   int    `json:"most"`          // as the ledger admits
	Batch  int    `json:"batch"`         // a power of two per socket, as static graphs require: the value in table 5 of the paper
	Cut    int    `json:"cut,omitempty"` // if none fits a socket: the sequences that fit with their caches cut over all sockets
}

// DefaultContexts returns the default lengths to plan for: 131072 tokens or the model's maximum,
// half and a quarter of that, none below least.
func DefaultContexts(most, least int) (out []int) {
	for n, i := min(131072, most), 0; i < 3 && n >= max(least, 1); n, i = n/2, i+1 {
		out = append(out, n)
	}
	return out
}

// RunPlan computes the weight and cache bytes of a cluster from the config alone. Weights use the code that
// loads them (shard.Bytes), and caches the cost functions of the batcher's ledger (kvcache.ResidentBytes).
// Prompts are assumed to be read elsewhere or one at a time before, so the memory of prefill is not included.
func RunPlan(m PlanModel, o PlanOptions) (*Plan, error) {
	switch {
	case o.Sockets < 1 || o.Sockets > 256:
		return nil, fmt.Errorf("bench: --nodes %d: want 1 to 256", o.Sockets)
	case o.Rows < 1 || o.Rows > 1<<16:
		return nil, fmt.Errorf("bench: --rows %d: want 1 to %d", o.Rows, 1<<16)
	case o.Ratio < 2:
		return nil, fmt.Errorf("bench: --ratio %d: want 2 or more", o.Ratio)
	}
	c := &m.Config
	least := o.Ratio * 16
	if len(o.Contexts) == 0 {
		if o.Contexts = DefaultContexts(c.MaxPositions, least); len(o.Contexts) == 0 {
			return nil, fmt.Errorf("bench: --ratio %d: contexts of %s (at most %d tokens) are too short to keep one token of %d",
				o.Ratio, m.Name, c.MaxPositions, o.Ratio)
		}
	}
	held, err := NodeBytes(m, o)
	if err != nil {
		return nil, err
	}
	g := shard.GeometryOf(c, o.KV)
	p := &Plan{Model: m.Name, Parameters: m.Parameters, Sockets: o.Sockets, Memory: o.Memory, Mapping: string(o.Mapping),
		WeightType: o.Weights.String(), KVType: o.KV.String(), TokenBytes: g.TokenBytes(),
		WeightBytes: held.Weights, EmbeddingBytes: held.Embedding, WorkspaceBytes: held.Workspace}
	p.CacheBytes = o.Memory - p.WeightBytes - p.EmbeddingBytes - p.WorkspaceBytes
	for _, context := range o.Contexts {
		if context < least || context > c.MaxPositions {
			return nil, fmt.Errorf("bench: --context %d: want %d to %d tokens, the longest context of %s", context, least, c.MaxPositions, m.Name)
		}
		kept := context / o.Ratio
		snap, err := kvpolicy.Parse(fmt.Sprintf("snapstream:sink=4,recent=%d,topk=%d", kept/2-4, kept-kept/2))
		if err != nil {
			return nil, err
		}
		p.Rows = append(p.Rows, PlanRow{Context: context, Compressed: kept,
			Full: p.batch(g, context, kvcache.Full()), SnapStream: p.batch(g, context, snap)})
	}
	return p, nil
}

// NodeMemory is the memory of one socket besides its caches, in bytes.
type NodeMemory struct {
	Weights   int64 // of the socket with the most
	Embedding int64 // mapped from the checkpoint; processes of one machine share it
	Workspace int64 // activations and logits of a step
}

// NodeBytes computes the memory of each socket of a cluster with even shares, without its caches, in bytes.
// It reads Sockets, Weights, Mapping and Rows of o.
func NodeBytes(m PlanModel, o PlanOptions) (NodeMemory, error) {
	c := &m.Config
	members := make([]topology.Member, o.Sockets)
	for i := range members {
		members[i] = topology.Member{ID: strconv.Itoa(i), Share: 1}
	}
	place, err := topology.Place(1, o.Mapping, shard.ShapeOf(c), members)
	if err != nil {
		return NodeMemory{}, fmt.Errorf("bench: %w", err)
	}
	var h NodeMemory
	for rank := range members {
		h.Weights = max(h.Weights, shard.Bytes(c, place, rank, o.Weights))
	}
	stored := int64(2)
	if c.DType == tensor.F32 {
		stored = 4
	}
	h.Embedding = int64(c.Vocab) * int64(c.Hidden) * stored
	const logitRows = 64 // whose logits are in memory at once
	h.Workspace = 4 * (int64(o.Rows)*int64(m.row()) + logitRows*int64(c.Vocab))
	return h, nil
}

func (p *Plan) batch(g kvcache.Geometry, context int, policy *kvcache.Policy) PlanBatch {
	b := PlanBatch{Policy: policy.Spec(), Bytes: kvcache.ResidentBytes(g, context, context, policy)}
	if each := p.CacheBytes / b.Bytes; each > 0 {
		b.Most = p.Sockets * int(each)
		b.Batch = p.Sockets << (bits.Len64(uint64(each)) - 1)
	} else if policy.RebuildsByPrefill() && g.Units == 0 && p.Sockets > 1 && p.CacheBytes > 0 {
		heads := (g.KVHeads + p.Sockets - 1) / p.Sockets // of the socket with the most
		b.Cut = int(p.CacheBytes / kvcache.PrefillBytes(g, heads, context, policy))
	}
	return b
}
