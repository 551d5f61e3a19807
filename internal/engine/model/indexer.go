package model

import "fmt"

// DeepSeek V3.2 (arXiv 2512.02556): DeepSeek V3 (deepseek.go) whose layers choose the tokens that a
// query attends to, by an indexer with small heads. With the normed latent cq of queries:
//
//	q   = RoPE(IndexQ cq), k = RoPE(LayerNorm(IndexK h))  the first part of each head, pairs of halves
//	s_t = sum over heads of w (q . k_t / sqrt(dim))+      w = IndexWeights h / sqrt(heads)
//
// A query attends to the TopK tokens with the largest s. The key of a token is stored in the cache
// after its row. So it counts in the ledger and moves with the row.
func init() {
	register(architecture{
		Name:     deepseek32,
		defaults: map[string]string{"max_position_embeddings": "163840", "q_lora_rank": "1536"},
		read: func(f *fields, c *Config) {
			readDeepseek(f, c)
			readLayerKinds(f, c)
			f.must("mlp_bias", false)
			readIndexer(f, c)
		},
		layer:  indexedLayer,
		latent: true,
		extra:  llamaExtra,
		beyond: deepseekBeyond,
	})
}

const deepseek32 = "DeepseekV32ForCausalLM"

// Indexer chooses the tokens that a query of latent attention reads.
type Indexer struct {
	Heads int // 0: none, a query reads all tokens
	Dim   int // of its heads, of which the first Latent.Rope elements rotate
	TopK  int // tokens that a query reads
}

// IndexSpec names the tensors of a layer's indexer.
type IndexSpec struct {
	Q               Linear // (heads*dim, query rank)
	K               Linear // (dim, hidden)
	Norm, NormShift string // (dim): LayerNorm of keys and what is added after it
	Weights         Linear // (heads, hidden)
}

func readIndexer(f *fields, c *Config) {
	l := &c.Latent
	l.Index = Indexer{Heads: f.Size("index_n_heads", 64, maxHeads), Dim: f.Size("index_head_dim", 128, maxHeadDim), TopK: f.Size("index_topk", 2048, maxPositions)}
	switch {
	case f.err != nil:
	case l.QueryRank == 0:
		f.fail("q_lora_rank", ErrUnsupported, "null: the indexer reads the latent of queries")
	case l.Index.Dim < l.Rope:
		f.fail("index_head_dim", ErrFormat, "%d, but the first %d elements of a head rotate", l.Index.Dim, l.Rope)
	}
}

func indexedLayer(c *Config, i int) LayerSpec {
	l := deepseekLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.self_attn.indexer.", i)
	l.Latent.Index = &IndexSpec{Q: linear(p+"wq_b", false), K: linear(p+"wk", false), Norm: p + "k_norm.weight", NormShift: p + "k_norm.bias", Weights: linear(p+"weights_proj", false)}
	return l
}

// indexer lists the tensors of a layer's indexer.
func (s *specs) indexer(c *Config, x *IndexSpec) {
	if x == nil {
		return
	}
	d := &c.Latent
	s.linear(x.Q, d.Index.Heads*d.Index.Dim, d.QueryRank)
	s.linear(x.K, d.Index.Dim, c.Hidden)
	s.add(x.Norm, d.Index.Dim)
	s.add(x.NormShift, d.Index.Dim)
	s.linear(x.Weights, d.Index.Heads, c.Hidden)
}

// Row is the width of a cached row: the latent, the rotated key and the indexer's key.
func (l *Latent) Row() int { return l.Rank + l.Rope + l.Index.Dim }

// Columns is the number of a token's results of all projections of the hidden state: the latent of
// queries, the row of the cache, and the weights of the indexer's heads.
func (l *Latent) Columns() int { return l.QueryRank + l.Row() + l.Index.Heads }

// Down lists these projections in that order, with the number of their rows.
func (n *LatentSpec) Down(l *Latent) (parts []Linear, rows []int) {
	parts, rows = []Linear{n.QDown, n.KVDown}, []int{l.QueryRank, l.Rank + l.Rope}
	if n.Index != nil {
		parts, rows = append(parts, n.Index.K, n.Index.Weights), append(rows, l.Index.Dim, l.Index.Heads)
	}
	return parts, rows
}
