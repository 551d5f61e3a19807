package model

// Indexer chooses the tokens that a query of latent attention reads.
type Indexer struct {
	Heads int // 0: none, a query reads all tokens
	Dim   int // of its heads, of which the first Latent.Rope elements rotate
	TopK  int // tokens that a query reads

	// Neighbours is set if pairs of neighbours rotate, not pairs of halves.
	Neighbours bool `json:",omitempty"`
}

// IndexSpec names the tensors of a layer's indexer.
type IndexSpec struct {
	Q               Linear // (heads*dim, query rank)
	K               Linear // (dim, hidden)
	Norm, NormShift string // (dim): LayerNorm of keys, its weight and its bias
	Weights         Linear // (heads, hidden)
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

// Row returns the width of a cached row: the latent, the rotated key and the indexer's key.
func (l *Latent) Row() int { return l.Rank + l.Rope + l.Index.Dim }

// Columns returns the number of a token's results of all projections of the hidden state: the latent of
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
