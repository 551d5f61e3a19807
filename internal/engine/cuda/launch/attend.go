package launch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Attend is attention of N rows with queries Q[i*LdQ:] (Heads*HeadDim). Row i attends to the slots
// [0, Row.Slot] of its sequence, or to those of its window. The result goes to Out[i*LdOut:], to To, or
// to both. The keys of the rows must be in the cache (RopeWrite), except with Rotation.
//
// Rows of a prompt (Prompt) are successive tokens of one sequence, and share every read of the
// cache; the bits are the same.
type Attend struct {
	Cache
	Q        cuda.Pointer
	LdQ      int
	Heads    int
	Scale    float32
	Cap      float32      // 0: none; else see tensor.Score
	Sinks    cuda.Pointer // (Heads) float32, or 0
	Window   int          // as of tensor.AttendCausal: above 0 the last slots, below 0 the chunk, 0 all
	Rows     cuda.Pointer // (N) Row
	N        int
	Slots    int          // the largest Row.Slot of the rows, plus 1
	Prompt   bool         // one sequence, successive slots
	Rotation Rotation     // or zero; if Rotates: keys and values follow the queries, and attention also does the work of RopeWrite
	Parts    int          // thread blocks that share a run: 1 or 4; 0 chooses
	Tile     int          // of a prompt: rows (token, head) of a thread block, 32 or 64; 0 chooses
	Scratch  cuda.Pointer // ScratchBytes; unused by a prompt
	Out      cuda.Pointer // may be zero if To is set, the rows are not of a prompt, and HeadDim is a multiple of 32
	LdOut    int
	To       Rounded // or zero. If set, Heads*HeadDim must be a multiple of 32
}

// stateFloats returns the memory of a run's state: the output, 16 lanes of the sum, the largest score.
func stateFloats(dim int) int { return dim + 32 }

func (o Attend) runs() int { return ceil(o.Slots, tensor.RunSlots) }

// ScratchBytes returns the memory that attention needs between its two kernels.
func (o Attend) ScratchBytes() int64 {
	if o.Prompt {
		return 0
	}
	return o.stateBytes() + 4*int64(o.N)*int64(o.Heads)*int64(o.scoresLd())
}

func (o Attend) stateBytes() int64 {
	return 4 * int64(o.N) * int64(o.Heads) * int64(o.runs()) * int64(stateFloats(o.HeadDim))
}

// MostRows returns the number of rows that one operation computes with about this number of bytes of scratch memory, at
// least one. It is also limited by the grid of the kernels.
func (o Attend) MostRows(scratch int64) int {
	if o.Prompt {
		return o.N
	}
	one := o
	one.N = 1
	return max(1, min(MaxGridY/one.tasks(), int(scratch/max(1, one.stateBytes()))))
}

// Part returns the attention of n rows from a row on. Parts that follow one another may have the same scratch memory.
func (o Attend) Part(first, n int) Attend {
	row := int64(first)
	o.Q, o.Rows, o.N = o.Q.Add(4*row*int64(o.LdQ)), o.Rows.Add(row*RowBytes), n
	if o.Out != null {
		o.Out = o.Out.Add(4 * row * int64(o.LdOut))
	}
	if o.To != (Rounded{}) {
		bytes, scales := RoundedBytes(first, o.Heads*o.HeadDim)
		o.To = Rounded{Bytes: o.To.Bytes.Add(bytes), Scales: o.To.Scales.Add(scales)}
	}
	return o
}

// scoresLd returns the number of scores of a head that the first kernel leaves for the second, or 0.
func (o Attend) scoresLd() int {
	if o.parts() == splitParts {
		return o.runs() * tensor.RunSlots
	}
	return 0
}

// tasks returns the number of thread blocks of decode attention for one run.
func (o Attend) tasks() int { return o.N * o.KVHeads * ceil(o.Heads/o.KVHeads, queryTile) }

// parts is Parts, chosen if it is 0.
func (o Attend) parts() int {
	if o.Parts == 0 && !o.Prompt && o.canSplit() && o.runs()*o.tasks() <= splitBlocks {
		return splitParts
	}
	return max(1, o.Parts)
}

// Splits reports whether one kernel reads the keys and another the values.
func (o Attend) Splits() bool { return !o.Prompt && o.parts() == splitParts }

// Rotates reports whether attention has a kernel with Rotation. It does not change queries.
func (o Attend) Rotates() bool { return o.N == 1 && o.Splits() }

// queryTile is the number of query heads of a KV head that a thread block of decode attention computes.
const queryTile = 4

// splitParts thread blocks share a run if there are at most splitBlocks runs of KV heads: then a card has
// idle multiprocessors. Another kernel computes the scores before, scoredSlots in a thread block.
const splitParts, splitBlocks, scoredSlots = 4, 64, 32

// canSplit reports whether a part of a value is whole units of 16 bytes.
func (o Attend) canSplit() bool { return o.HeadDim*o.Type.BytesPerRow(1)%(16*splitParts) == 0 }

func (o Attend) Calls() ([]Call, error) {
	suffix, err := o.suffix(o.Heads)
	if err != nil || o.N == 0 {
		return nil, err
	}
	if o.To != (Rounded{}) {
		if err := wholeBlocks("rounded attention", o.Heads*o.HeadDim); err != nil {
			return nil, err
		}
	}
	if o.Parts == splitParts && !o.canSplit() {
		return nil, fmt.Errorf("launch: values of %d elements of %v in %d parts", o.HeadDim, o.Type, splitParts)
	}
	if o.Rotation != (Rotation{}) && !o.Rotates() {
		return nil, fmt.Errorf("launch: rotation within attention of %d rows over %d slots", o.N, o.Slots)
	}
	common := []any{o.Q, uint32(o.LdQ), o.Rows, o.Tables, o.Arena, uint32(o.Heads), uint32(o.KVHeads), uint32(o.HeadDim),
		uint32(o.Index), o.Scale, o.Cap, uint32(int32(o.Window))}
	var calls []Call
	to := o.To
	if o.Prompt {
		grid, name := o.promptGrid(largeTile), "attend_prompt_"+suffix
		if grid.Shared = promptBytes; o.Tile == largeTile || o.Tile == 0 && grid.X*grid.Y >= promptBlocks {
			name += "_64"
		} else {
			grid = o.promptGrid(smallTile)
		}
		calls = []Call{{name, grid, append(common, o.Sinks, o.Out, uint32(o.LdOut), uint32(o.N))}}
	} else {
		if o.HeadDim%block != 0 { // a block has columns of two heads
			to = Rounded{}
		}
		output := []any{o.Sinks, o.Out, uint32(o.LdOut), to.Bytes, to.Scales}
		if calls = o.runCalls(suffix, common, output); !o.last() {
			calls = append(calls, Call{"attend_fold", cuda.Grid{X: o.Heads, Y: o.N, Threads: 288},
				append([]any{o.Scratch, o.Rows, uint32(o.runs()), uint32(o.Heads), uint32(o.HeadDim), uint32(int32(o.Window))}, output...)})
		}
	}
	if o.To == (Rounded{}) || !o.Prompt && to == o.To {
		return calls, nil
	}
	if o.Out == null {
		return nil, errors.New("launch: rounded attention needs memory for the output before rounding")
	}
	quantize, err := Quantize{X: o.Out, LdX: o.LdOut, To: o.To, Rows: o.N, Cols: o.Heads * o.HeadDim}.Calls()
	return append(calls, quantize...), err
}

// last reports whether the kernel of a run completes the output: there is one run, and a part is a block of columns.
func (o Attend) last() bool {
	return o.parts() == splitParts && o.runs() == 1 && o.HeadDim == splitParts*block
}

// runCalls computes the states of all runs, for attend_fold, or the output.
func (o Attend) runCalls(suffix string, common, output []any) []Call {
	name, ld := "attend_"+suffix, o.scoresLd()
	if ld == 0 {
		return []Call{{name, cuda.Grid{X: o.runs(), Y: o.tasks(), Threads: 256}, append(common, o.Scratch)}}
	}
	last := uint32(0)
	if o.last() {
		last = 1
	}
	scores := o.Scratch.Add(o.stateBytes())
	return []Call{
		{"attend_scores_" + suffix, cuda.Grid{X: ld / scoredSlots, Y: o.tasks(), Threads: 128},
			slices.Concat(common, []any{scores, uint32(ld)}, o.Rotation.args())},
		{fmt.Sprintf("%s_%d", name, splitParts), cuda.Grid{X: o.runs(), Y: splitParts * o.tasks(), Threads: 256},
			slices.Concat(common, []any{o.Scratch, scores, uint32(ld)}, output, []any{last})},
	}
}

// A thread block of prompt attention computes this number of (token, head) rows, and half of it for heads of more than
// 128 elements. The large tile reads shared memory less often for a product. It needs promptBytes of it. It is chosen for
// at least promptBlocks thread blocks, so that no multiprocessor is idle.
const smallTile, largeTile, promptBytes, promptBlocks = 32, 64, 85312, 128

func promptRows(tile, dim int) int {
	if dim > 128 {
		return tile / 2
	}
	return tile
}

// promptTokens returns the number of tokens of a thread block for a group of heads.
func promptTokens(tile, group, dim int) int { return max(1, promptRows(tile, dim)/group) }

func (o Attend) promptGrid(tile int) cuda.Grid {
	group := o.Heads / o.KVHeads
	return cuda.Grid{X: ceil(o.N, promptTokens(tile, group, o.HeadDim)), Y: o.KVHeads * ceil(group, promptRows(tile, o.HeadDim)), Threads: 128}
}

func (o Attend) small() Operation {
	if o.Prompt {
		o.Tile = smallTile
	}
	return o
}
