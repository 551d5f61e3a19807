package launch

import (
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Mass adds to Out the attention that slots receive from N rows with queries Q[i*LdQ:] (Heads*HeadDim), as
// tensor.AttentionMass. Row i pays it to the slots [0, Row.Slot] of its sequence.
//
// Rows of a prompt (Prompt) are successive tokens of one sequence: Out is (KVHeads, Ld), and they are
// added to its values. Otherwise Out is (N, KVHeads, Ld), and each row begins at 0.
type Mass struct {
	Cache
	Q       cuda.Pointer
	LdQ     int
	Heads   int
	Scale   float32
	Cap     float32      // 0: none; else see tensor.Score
	Rows    cuda.Pointer // (N) Row
	N       int
	Slots   int // the largest Row.Slot of the rows, plus 1; at most Ld
	Prompt  bool
	Scratch cuda.Pointer // ScratchBytes
	Out     cuda.Pointer
	Ld      int
}

// ScratchBytes returns the memory for the largest scores and the sums of all rows and heads.
func (o Mass) ScratchBytes() int64 { return 8 * int64(o.N) * int64(o.Heads) }

func (o Mass) Calls() ([]Call, error) {
	suffix, err := o.suffix(o.Heads)
	if err != nil || o.N == 0 {
		return nil, err
	}
	common := []any{o.Q, uint32(o.LdQ), o.Rows, o.Tables, o.Arena, uint32(o.Heads), uint32(o.KVHeads), uint32(o.HeadDim),
		uint32(o.Index), o.Scale, o.Cap, o.Scratch}
	y, apart := o.KVHeads*o.N, uint32(1)
	if o.Prompt {
		y, apart = o.KVHeads, 0
	}
	return []Call{
		{"mass_sums_" + suffix, cuda.Grid{X: o.Heads, Y: o.N, Threads: tensor.BlockSlots}, common},
		{"mass_add_" + suffix, cuda.Grid{X: ceil(o.Slots, tensor.BlockSlots), Y: y, Threads: tensor.BlockSlots},
			append(common[:len(common):len(common)], o.Out, uint32(o.Ld), uint32(o.N), apart)},
	}, nil
}
