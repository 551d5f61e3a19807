package bench

import (
	"fmt"
	"math/bits"
	"strings"

	"shoal/actors/socket"
	"shoal/kvcache"
	"shoal/model"
	"shoal/tensor"
	"shoal/topology"
)

// PlanModel is what planning needs to know of a model: no weights, only its config.
type PlanModel struct {
	Name       string
	Parameters int64 // those of one forward pass; the embedding counted once
	// Matrices are all but the embedding.
	Matrices []PlanMatrix
	Embed    int64 // elements of the embedding, which is read through the mapped file
	Stored   tensor.DType
	Context  int
	Row      int // floats of a token's activations in a step
	Vocab    int
	Cache    func(kv tensor.DType) kvcache.Geometry
}

// PlanMatrix is one weight matrix. Attention matrices are cut with the gather mapping and
// whole with reduce; Whole ones (vectors, routers) are on every socket, as float32.
type PlanMatrix struct {
	Rows, Cols, Count int64
	Attention, Whole  bool
}

// PlanModelOf reads what a config says.
func PlanModelOf(name string, c *model.Config) PlanModel {
	m := PlanModel{Name: name, Stored: c.DType, Context: c.MaxPositions, Vocab: c.Vocab,
		Row:   3*c.Hidden + 2*c.Heads*c.HeadDim + 2*c.KVHeads*c.HeadDim + 2*c.FFN,
		Cache: func(kv tensor.DType) kvcache.Geometry { return socket.GeometryOf(c, kv) }}
	for _, s := range c.Tensors() {
		p := PlanMatrix{Rows: int64(s.Shape[0]), Cols: 1, Count: 1, Whole: len(s.Shape) == 1 || strings.HasSuffix(s.Name, ".gate.weight"), Attention: strings.Contains(s.Name, "self_attn.")}
		if len(s.Shape) > 1 {
			p.Cols = int64(s.Shape[1])
		}
		m.Parameters += p.Rows * p.Cols
		if s.Name == model.LlamaEmbedding {
			m.Embed = p.Rows * p.Cols
			if !c.Tied {
				continue // else it is the head's matrix too
			}
		}
		m.Matrices = append(m.Matrices, p)
	}
	return m
}

// DeepSeekR1 is DeepSeek-V3's shape (arXiv 2412.19437, section 4.2), with the multi-token
// prediction layer left out: 61 layers of which 3 are dense, latent attention with 512 +
// 64 cached values a token, 256 routed experts and a shared one.
func DeepSeekR1() PlanModel {
	const hidden, layers, dense, heads, vocab = 7168, 61, 3, 128, 129280
	const queryRank, rank, nope, rope, value = 1536, 512, 128, 64, 128
	const ffn, expert, experts = 18432, 2048, 256
	m := PlanModel{Name: "deepseek-r1", Stored: tensor.BF16, Context: 163840, Vocab: vocab, Embed: vocab * hidden,
		Row: 3*hidden + heads*(rank+rope) + heads*(nope+rope) + heads*rank + heads*value + 2*max(ffn, 9*expert),
		Cache: func(kv tensor.DType) kvcache.Geometry {
			return kvcache.Geometry{Layers: layers, KVHeads: 1, Group: heads, Layout: tensor.KVLayout{Type: kv, KDim: rank + rope}} // the value is the latent itself
		}}
	attention := func(rows, cols int64) {
		m.Matrices = append(m.Matrices, PlanMatrix{Rows: rows, Cols: cols, Count: layers, Attention: true})
	}
	attention(queryRank, hidden)
	attention(heads*(nope+rope), queryRank)
	attention(rank+rope, hidden)
	attention(heads*(nope+value), rank)
	attention(hidden, heads*value)
	add := func(rows, cols, count int64, whole bool) {
		m.Matrices = append(m.Matrices, PlanMatrix{Rows: rows, Cols: cols, Count: count, Whole: whole})
	}
	add(2*ffn, hidden, dense, false)
	add(hidden, ffn, dense, false)
	add(2*expert, hidden, (layers-dense)*(experts+1), false)
	add(hidden, expert, (layers-dense)*(experts+1), false)
	add(experts, hidden+1, layers-dense, true)    // router and its correction bias
	add(2*hidden+queryRank+rank, 1, layers, true) // norms
	add(hidden, 1, 1, true)                       // last norm
	add(vocab, hidden, 1, false)                  // head
	for _, p := range m.Matrices {
		m.Parameters += p.Rows * p.Cols * p.Count
	}
	m.Parameters += m.Embed
	return m
}

// PlanOptions are the cluster to plan for.
type PlanOptions struct {
	Sockets  int
	Memory   int64 // of one socket, for everything
	Weights  tensor.DType
	KV       tensor.DType
	Mapping  topology.Mapping
	Rows     int   // token budget of a step
	Contexts []int // tokens
	Ratio    int   // SnapStream keeps 1/Ratio of a context
}

// Plan says what fits.
type Plan struct {
	Model          string    `json:"model"`
	Parameters     int64     `json:"parameters"`
	Sockets        int       `json:"sockets"`
	Memory         int64     `json:"memory_bytes"`
	Mapping        string    `json:"mapping"`
	WeightType     string    `json:"weight_type"`
	KVType         string    `json:"kv_type"`
	WeightBytes    int64     `json:"weight_bytes"`    // of one socket
	EmbeddingBytes int64     `json:"embedding_bytes"` // mapped, of one socket
	WorkspaceBytes int64     `json:"workspace_bytes"` // activations and logits, of one socket
	CacheBytes     int64     `json:"cache_bytes"`     // what is left for caches, of one socket; below 0: does not fit
	TokenBytes     int64     `json:"cache_bytes_per_token"`
	Rows           []PlanRow `json:"rows"`
}

// PlanRow is one length of context.
type PlanRow struct {
	Context    int       `json:"context"`
	Compressed int       `json:"compressed"`
	Full       PlanBatch `json:"full"`
	SnapStream PlanBatch `json:"snapstream"`
}

// PlanBatch is how many sequences decode together. A sequence lies on one socket, so
// both are multiples of the sockets.
type PlanBatch struct {
	Policy string `json:"policy"`
	Bytes  int64  `json:"bytes_per_sequence"`
	Most   int    `json:"most"`  // as the ledger admits
	Batch  int    `json:"batch"` // each socket's part a power of two, as static graphs have it: the figure of the paper's table 5
}

// weightBytes is what a matrix part takes packed.
func weightBytes(dt tensor.DType, rows, cols int64) int64 {
	rows = (rows + tensor.RowGrain - 1) / tensor.RowGrain * tensor.RowGrain
	cols = (cols + tensor.BlockWidth - 1) / tensor.BlockWidth * tensor.BlockWidth
	blocks := rows * cols / tensor.BlockWidth
	switch dt {
	case tensor.Q8_0:
		return blocks * (tensor.BlockWidth + 2)
	case tensor.Q4_0:
		return blocks * (tensor.BlockWidth/2 + 2)
	case tensor.F32:
		return rows * cols * 4
	}
	return rows * cols * 2
}

// RunPlan computes what a cluster would hold, from the config alone: weights by mapping,
// the step's activations, and caches by the cost functions that the batcher's ledger
// admits by (kvcache.ResidentBytes). Prompts are taken to be read elsewhere or one at a
// time before: what prefill holds meanwhile is not in it.
func RunPlan(m PlanModel, o PlanOptions) (*Plan, error) {
	if o.Sockets < 1 || o.Sockets > 256 || o.Ratio < 2 || o.Rows < 1 {
		return nil, fmt.Errorf("bench: plan for %d sockets, %d rows a step, a ratio of %d: want 1 to 256 sockets, a row and a ratio of 2 or more", o.Sockets, o.Rows, o.Ratio)
	}
	g := m.Cache(o.KV)
	p := &Plan{Model: m.Name, Parameters: m.Parameters, Sockets: o.Sockets, Memory: o.Memory, Mapping: string(o.Mapping),
		WeightType: o.Weights.String(), KVType: o.KV.String(), TokenBytes: g.TokenBytes()}
	n := int64(o.Sockets)
	for _, w := range m.Matrices {
		rows := (w.Rows + n - 1) / n
		switch {
		case w.Whole:
			p.WeightBytes += w.Count * w.Rows * w.Cols * 4
			continue
		case w.Attention && o.Mapping == topology.Reduce:
			rows = w.Rows
		}
		p.WeightBytes += w.Count * weightBytes(o.Weights, rows, w.Cols)
	}
	stored := int64(2)
	if m.Stored == tensor.F32 {
		stored = 4
	}
	p.EmbeddingBytes = m.Embed * stored
	const logitRows = 64 // whose logits are in memory at once
	p.WorkspaceBytes = 4 * (int64(o.Rows)*int64(m.Row) + logitRows*int64(m.Vocab))
	p.CacheBytes = o.Memory - p.WeightBytes - p.EmbeddingBytes - p.WorkspaceBytes
	for _, context := range o.Contexts {
		if context < o.Ratio*16 || context > m.Context {
			return nil, fmt.Errorf("bench: a context of %d tokens: want %d to the model's %d", context, o.Ratio*16, m.Context)
		}
		kept := context / o.Ratio
		snap := kvcache.SnapStream{Sink: 4, Recent: kept/2 - 4, TopK: kept - kept/2, Obs: 64, Pool: 7}
		p.Rows = append(p.Rows, PlanRow{Context: context, Compressed: kept,
			Full: p.batch(g, context, kvcache.Full{}), SnapStream: p.batch(g, context, snap)})
	}
	return p, nil
}

func (p *Plan) batch(g kvcache.Geometry, context int, policy kvcache.Policy) PlanBatch {
	b := PlanBatch{Policy: policy.Spec(), Bytes: kvcache.ResidentBytes(g, context, context, policy)}
	if each := p.CacheBytes / b.Bytes; each > 0 {
		b.Most = p.Sockets * int(each)
		b.Batch = p.Sockets << (bits.Len64(uint64(each)) - 1)
	}
	return b
}
