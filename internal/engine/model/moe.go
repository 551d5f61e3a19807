package model

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/safetensors"
)

// MoE is the mixture of experts (Shazeer et al., arXiv 1701.06538) that replaces the feed-forward
// network in some layers:
//
//	s = Router h                                          (experts)
//	chosen, w = Router.choose(s)                          PerToken experts, a weight each
//	y = Shared(h) + sum over chosen e, ascending, of Down_e (w_e * SiLU(Gate_e h) * Up_e h)
//
// Shared is a feed-forward network that every token passes through, without a weight.
type MoE struct {
	Experts  int // routed; 0: every layer is dense
	PerToken int // experts per token
	FFN      int // inner width of one expert
	Shared   int `json:",omitempty"` // inner width of all shared experts together; 0: none
	Router   Router
	DenseFFN bool  `json:",omitempty"` // see DenseFFNNames
	Biased   bool  `json:",omitempty"` // see ExpertBiases
	Gated    bool  `json:",omitempty"` // the output of the shared expert is multiplied by a sigmoid
	Ungated  bool  `json:",omitempty"` // experts have no Up: Down_e (w_e * act(Gate_e h))
	Dense    []int `json:",omitempty"` // layers with a dense feed-forward network, ascending
}

// Router turns scores into experts and weights, in this order: Score; plus the correction bias, for
// choosing alone; the best TopGroups groups; the best experts within them; their weights, which are
// scores without the bias.
type Router struct {
	Score     Score
	Normalise bool    // weights are divided by their sum
	MinSum    float32 `json:",omitempty"` // the least divisor; 0: the sum plus 1e-20 is the divisor
	SumPlus   float32 `json:",omitempty"` // the divisor is the sum plus this; 0: see MinSum
	OfInput   bool    `json:",omitempty"` // weights multiply Gate_e h and Up_e h instead of the product (Llama 4)
	Scale     float32 // factor of the weights, applied after that; DeepSeek's routed_scaling_factor
	Bias      bool    // a correction bias by expert (DeepSeek V3, arXiv 2412.19437, section 2.1.2)

	// Group-limited choice (DeepSeek V2, arXiv 2405.04434, section 2.1.3): experts form Groups
	// runs, of which a token uses the best TopGroups. A group's score is the sum of its best
	// GroupTop experts' scores (V2: 1, V3: 2). Groups 0: no such limit.
	Groups, TopGroups, GroupTop int `json:",omitempty"`
}

// Score is the function from a router's outputs to scores.
type Score string

const (
	Softmax Score = "softmax" // over all experts
	Sigmoid Score = "sigmoid" // of each alone

	// SoftmaxOfChosen makes weights of the chosen experts' outputs alone. Experts are chosen by the outputs.
	SoftmaxOfChosen Score = "softmax of chosen"

	// SigmoidOfChosen is Sigmoid, but experts are chosen by the outputs: large outputs have equal sigmoids.
	SigmoidOfChosen Score = "sigmoid of chosen"
)

// MoENames names the tensors of a layer with experts.
type MoENames struct {
	Router                           string         // (experts, hidden)
	Bias                             string         // (experts): Router.Bias
	ExpertPrefix                     string         // prefix of the expert's number
	GatePart, UpPart, DownPart       string         // suffixes after it
	GateUps, Downs                   string         // see stacks
	DenseFFN                         *DenseFFNNames // MoE.DenseFFN; nil: no
	Biases                           *ExpertBiases  // MoE.Biased; nil: no
	SharedGate, SharedUp, SharedDown string         // (shared, hidden), (shared, hidden), (hidden, shared): MoE.Shared
	SharedFactor                     string         // (1, hidden): Shared(h) is multiplied by sigmoid(SharedFactor h): MoE.Gated
}

// DenseFFNNames names the extra tensors of a layer with experts whose shared FFN is a dense FFN with
// norms of its own (Gemma 4). x is the residual stream:
//
//	s = Router (RMSNorm(x) * RouterScale * hidden^-0.5)    a norm without weights
//	w_e *= ExpertScale_e                                   of the chosen experts
//	y = RMSNorm(Shared RMSNorm(x, FFNNorm), SharedNorm) + RMSNorm(sum over e of w_e Expert_e RMSNorm(x, Norm), PostNorm)
type DenseFFNNames struct {
	RouterScale    string // (hidden)
	ExpertScale    string // (experts)
	SharedNorm     string // (hidden): of the output of the shared FFN
	Norm, PostNorm string // (hidden): of the experts' input, of the sum of their outputs
}

// ExpertBiases names the biases of a router and of its experts (gpt-oss). A weight w_e multiplies
// Down_e x + bias.
type ExpertBiases struct {
	Router   string // (experts)
	Gate, Up string // (experts, ffn)
	Down     string // (experts, hidden)
}

// Expert returns the matrices of expert e: (ffn, hidden), (ffn, hidden), (hidden, ffn).
func (n *MoENames) Expert(e int) (gate, up, down string) {
	p := fmt.Sprintf("%s%d.", n.ExpertPrefix, e)
	if n.UpPart != "" {
		up = p + n.UpPart
	}
	return p + n.GatePart, up, p + n.DownPart
}

// Stacks names the tensors that hold all experts: gate and up, and down.
func (n *MoENames) Stacks() (gateUps, downs string) {
	return cmp.Or(n.GateUps, n.ExpertPrefix+"gate_up_proj"), cmp.Or(n.Downs, n.ExpertPrefix+"down_proj")
}

// Sparse reports whether layer i has experts instead of a dense feed-forward network.
func (c *Config) Sparse(i int) bool { return c.MoE.Experts > 0 && !slices.Contains(c.MoE.Dense, i) }

// SparseLayers returns the number of layers with experts.
func (c *Config) SparseLayers() int {
	if c.MoE.Experts == 0 {
		return 0
	}
	return c.Layers - len(c.MoE.Dense)
}

// MLPExperts returns the names of Qwen and DeepSeek.
func MLPExperts(mlp string) *MoENames {
	n := &MoENames{
		Router: mlp + "gate.weight", Bias: mlp + "gate.e_score_correction_bias",
		ExpertPrefix: mlp + "experts.", GatePart: "gate_proj.weight", UpPart: "up_proj.weight", DownPart: "down_proj.weight",
	}
	n.Share(mlp + "shared_experts")
	return n
}

// Share names the shared experts by their module.
func (n *MoENames) Share(module string) {
	n.SharedGate, n.SharedUp, n.SharedDown = module+".gate_proj.weight", module+".up_proj.weight", module+".down_proj.weight"
}

// experts lists the tensors of a layer with experts.
func (s *specs) experts(c *Config, n *MoENames) {
	m := &c.MoE
	three := func(gate, up, down string, width int) {
		s.add(gate, width, c.Hidden)
		s.add(up, width, c.Hidden) // none if m.Ungated
		s.add(down, c.Hidden, width)
	}
	s.add(n.Router, m.Experts, c.Hidden)
	if m.Router.Bias {
		s.add(n.Bias, m.Experts)
	}
	for e := range m.Experts {
		gate, up, down := n.Expert(e)
		three(gate, up, down, m.FFN)
	}
	if m.Shared > 0 {
		three(n.SharedGate, n.SharedUp, n.SharedDown, m.Shared)
	}
	if m.Gated {
		s.add(n.SharedFactor, 1, c.Hidden)
	}
	if b := n.Biases; b != nil {
		s.add(b.Router, m.Experts)
		s.add(b.Gate, m.Experts, m.FFN)
		s.add(b.Up, m.Experts, m.FFN)
		s.add(b.Down, m.Experts, c.Hidden)
	}
	if b := n.DenseFFN; b != nil {
		s.add(b.RouterScale, c.Hidden)
		s.add(b.ExpertScale, m.Experts)
		s.add(b.SharedNorm, c.Hidden)
		s.add(b.Norm, c.Hidden)
		s.add(b.PostNorm, c.Hidden)
	}
}

// CheckMoE refuses settings that no router can satisfy. experts, perToken, groups and topGroups are
// the family's names of the fields.
func CheckMoE(f *Fields, c *Config, experts, perToken, groups, topGroups string) {
	if f.Err != nil {
		return
	}
	m, r := &c.MoE, &c.MoE.Router
	switch {
	case m.Experts*c.Layers*3 > safetensors.MaxTensors:
		f.Fail(experts, ErrOutOfRange, "%d experts in %d layers are more than %d tensors", m.Experts, c.Layers, safetensors.MaxTensors)
	case m.PerToken > m.Experts:
		f.Fail(perToken, ErrFormat, "%d of %d experts", m.PerToken, m.Experts)
	case r.Groups <= 1:
		r.Groups, r.TopGroups, r.GroupTop = 0, 0, 0
	case r.Groups > MaxGroups:
		f.Fail(groups, ErrOutOfRange, "%d groups, more than %d", r.Groups, MaxGroups)
	case m.Experts%r.Groups != 0:
		f.Fail(groups, ErrFormat, "%d groups do not divide the %d experts", r.Groups, m.Experts)
	case r.TopGroups > r.Groups:
		f.Fail(topGroups, ErrFormat, "%d of %d groups", r.TopGroups, r.Groups)
	case m.Experts/r.Groups < r.GroupTop:
		f.Fail(groups, ErrFormat, "groups of %d experts have no best %d", m.Experts/r.Groups, r.GroupTop)
	case m.PerToken > r.TopGroups*(m.Experts/r.Groups):
		f.Fail(perToken, ErrFormat, "%d experts, but %d groups of %d hold no more than %d", m.PerToken, r.TopGroups,
			m.Experts/r.Groups, r.TopGroups*(m.Experts/r.Groups))
	}
}

// DenseLayers lists the dense layers: those in named, and those whose number, counted from 1, is
// not a multiple of step.
func DenseLayers(layers, step int, named []int) []int {
	var dense []int
	for i := range layers {
		if (i+1)%step != 0 || slices.Contains(named, i) {
			dense = append(dense, i)
		}
	}
	return dense
}

// Limits of a mixture, several times the largest published.
const (
	MaxExperts  = 1 << 12
	MaxGroups   = 64 // Router.Groups
	MaxGroupTop = 2  // Router.GroupTop
)
