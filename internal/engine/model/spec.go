package model

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// LayerSpec specifies one layer: its tensors and its operations. Nothing else controls a layer. A
// tensor without a name is absent.
type LayerSpec struct {
	AttnNorm     string      // (hidden): h = RMSNorm(x); without a name h = x
	SameNorm     bool        // h comes from the previous layer
	Q            Linear      // (heads*dim, hidden)
	K, V         Linear      // (kv*dim, hidden); without a name the layer reads another's cache, and without V alone its values are its keys
	KV           KVShape     // of the layer; KV.Dim is the dim in these comments
	FFN          int         // the ffn in these comments
	VNorm        bool        // RMSNorm without weights of every value head
	Borrows      bool        // the layer reads the keys and values of an earlier one
	KVSource     *KVSource   // the input of K and V instead of h; nil: h
	Cache        int         // number of the cache that attention reads, see Config.CacheOf
	Latent       *LatentSpec // instead of Q, K and V; nil: none
	Delta        *DeltaSpec  // instead of Q, K, V and O; nil: none
	QGate        Linear      // (heads*dim, hidden): attention's output is multiplied by sigmoid(QGate h)
	UnitNorm     bool        // RMSNorm without weights of every query and key head
	Grows        bool        // queries grow with their position, see Growth
	QNorm, KNorm string      // (dim) or (heads*dim), (kv*dim): RMSNorm of queries and keys, see QKNormOf; in the orders of Q and K
	O            Linear      // (hidden, heads*value)
	Sinks        string      // (heads): see tensor.Score
	PostAttnNorm string      // (hidden): norm of attention's contribution to x

	Window int // position i attends to positions i-Window+1 to i; 0: to all before it
	Rope   int // index in Config.Rotations

	FFNNorm     string // (hidden): h = RMSNorm(x); without a name h = x, or with Config.Parallel that of attention
	Gate, Up    Linear // (ffn, hidden); without Up the FFN is Down act(Gate h); without Gate and Experts there is no FFN
	Down        Linear // (hidden, ffn)
	Activation  tensor.Activation
	Experts     *MoENames // instead of Gate, Up and Down; nil: none
	PostFFNNorm string    // (hidden): norm of the FFN's contribution to x

	PerLayer *PerLayerSpec // the part after the FFN; nil: none
	Scalar   string        // (1): factor of x at the end of the layer

	MixFactor, FFNFactor, GateFactor float32 // of the outputs of attention and of the FFN, and of Gate h; 0 counts as 1

	NormsAddOne bool // norms multiply by 1 + weight
	NormBias    bool // norms add a bias, see BiasOf
}

// KVSource is RMSNorm(x, Norm) of the input x of a layer.
type KVSource struct {
	Layer int
	Norm  string // (hidden)
}

// Linear is a projection: rows of a stored matrix, and its bias.
type Linear struct {
	Weight string // (rows, columns)
	Bias   string // (rows)
	// First is the first row of this projection if the stored matrix holds several, with Of rows in
	// all; Of 0: this one alone.
	First, Of int
	Order     Order // of its rows and of its bias
	Run, Gap  int   // after every Run rows, Gap rows of another projection follow; 0: none do
}

// Row returns the stored position of row r.
func (l *Linear) Row(r int) int {
	r = l.Order.Row(r)
	if l.Gap > 0 {
		r += r / l.Run * l.Gap
	}
	return l.First + r
}

// Projection returns a projection under the name that Hugging Face gives its module.
func Projection(module string, bias bool) Linear {
	l := Linear{Weight: module + ".weight"}
	if bias {
		l.Bias = module + ".bias"
	}
	return l
}

// Spec is a tensor that an architecture needs. A matrix is [rows, columns] and maps columns to
// rows, y = W x. A vector is [n].
type Spec struct {
	Name  string
	Shape []int
}

// specs lists tensors in the order in which a forward pass reads them.
type specs []Spec

func (s *specs) add(name string, shape ...int) {
	if name != "" {
		*s = append(*s, Spec{Name: name, Shape: shape})
	}
}

func (s *specs) linear(l Linear, rows, cols int) {
	if l.First == 0 { // the other projections of a stored matrix follow the first
		s.add(l.Weight, max(rows, l.Of), cols)
	}
	s.add(l.Bias, rows)
}

func (s *specs) layer(c *Config, l *LayerSpec, i int) {
	if l.KVSource != nil && l.KVSource.Layer == i {
		s.add(l.KVSource.Norm, c.Hidden)
	}
	s.norm(c, l.AttnNorm)
	switch {
	case l.Latent != nil:
		s.latent(c, l.Latent)
	case l.Delta != nil:
		s.delta(c, l.Delta)
	default:
		s.linear(l.Q, c.Heads*l.KV.Dim, c.Hidden)
		s.linear(l.QGate, c.Heads*l.KV.Dim, c.Hidden)
		s.linear(l.K, l.KV.Heads*l.KV.Dim, c.Hidden)
		s.linear(l.V, l.KV.Heads*l.KV.Dim, c.Hidden)
	}
	q, k := 1, 1 // heads in the norms
	if c.QKNormOf == OfProjection || c.QKNormOf == OfOwnHeads {
		q, k = c.Heads, l.KV.Heads
	}
	s.add(l.QNorm, q*l.KV.Dim)
	s.add(l.KNorm, k*l.KV.Dim)
	s.add(l.Sinks, c.Heads)
	s.linear(l.O, c.Hidden, c.Heads*c.ValueOf(l))
	s.add(l.PostAttnNorm, c.Hidden)
	s.norm(c, l.FFNNorm)
	if l.Experts != nil {
		s.experts(c, l.Experts)
	} else {
		s.linear(l.Gate, l.FFN, c.Hidden)
		s.linear(l.Up, l.FFN, c.Hidden)
		s.linear(l.Down, c.Hidden, l.FFN)
	}
	s.add(l.PostFFNNorm, c.Hidden)
	s.perLayer(c, l.PerLayer)
	s.add(l.Scalar, 1)
}

// Layer returns the spec of layer i, counted from 0.
func (c *Config) Layer(i int) LayerSpec {
	a, ok := Lookup(c.Architecture)
	if !ok {
		a.Layer = DecoderLayer
	}
	l := a.Layer(c, i)
	l.Cache, l.KV, l.FFN, l.Borrows = c.CacheOf(i), c.KVOf(i), c.FFNOf(i), c.Borrows(i)
	if m := c.Multipliers.Residual; m != 0 {
		l.MixFactor, l.FFNFactor = m, m
	}
	c.SwiftKV.rewire(&l, i)
	return l
}

// Tensors lists the tensors that the architecture of c needs, in the order in which a forward pass
// reads them.
func (c *Config) Tensors() []Spec {
	if _, ok := Lookup(c.Architecture); !ok {
		return nil
	}
	var s specs
	s.add(Embedding, c.Vocab, c.Hidden)
	s.inputs(c)
	s.perLayerInputs(c)
	for i := range c.Layers {
		l := c.Layer(i)
		s.layer(c, &l, i)
	}
	s.norm(c, FinalNorm)
	if !c.Tied && !c.Headless {
		s.add(Head, c.Vocab, c.Hidden)
	}
	return s
}

// HeadName returns the matrix of the output head.
func (c *Config) HeadName() string {
	if c.Tied {
		return Embedding
	}
	return Head
}

// Tensors outside the layers.
const (
	Embedding = "model.embed_tokens.weight" // (vocab, hidden)
	FinalNorm = "model.norm.weight"         // (hidden)
	Head      = "lm_head.weight"            // (vocab, hidden); the embedding when tied
)
