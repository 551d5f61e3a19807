package probe

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Times are the times of a step of a model with Q8_0 weights and BF16 caches, and of its kernels.
type Times struct {
	Layers  int           `json:"layers"` // fewer than the model's if the card's memory is too small
	Read    float64       `json:"read_bytes_per_second"`
	Whole   time.Duration `json:"whole_ns"` // one graph of all kernels
	Bytes   int64         `json:"bytes"`    // that the step must read from the card's memory
	Kernels []Time        `json:"kernels"`  // in the order of the first layer
}

// Time is the time of a kernel at one place of each layer, or after the last.
type Time struct {
	Stage    string        `json:"stage"`
	Kernel   string        `json:"kernel"`
	Launches int           `json:"launches"`  // in a step
	Bytes    int64         `json:"bytes"`     // that a launch must read from the card's memory
	Alone    time.Duration `json:"alone_ns"`  // a launch, in a graph of the step's launches of this kernel
	Within   time.Duration `json:"within_ns"` // a launch's part of the step: the step without these launches is as much shorter
}

// Sum returns the time of all kernels by themselves.
func (t *Times) Sum() (sum time.Duration) {
	for _, k := range t.Kernels {
		sum += time.Duration(k.Launches) * k.Alone
	}
	return sum
}

// shape is the sizes of a dense model.
type shape struct {
	layers, hidden, ffn, vocab, heads, kvheads, dim int
	read                                            int64 // bytes that measure the card's memory
}

var llama8B = shape{32, hidden, intermediate, vocab, heads, kvheads, dim, readBytes}

// stepCase is a step: the last tokens of some sequences, or some tokens of one prompt.
type stepCase struct {
	rows, slots int // slots of each sequence
	prompt      bool
	small       bool // with the kernels of cards with less shared memory
}

var stepCases = []stepCase{
	{1, 1024, false, false}, {1, 4096, false, false}, {1, 32768, false, false}, {16, 4096, false, false}, {512, 2048, true, false},
	{512, 2048, true, true},
}

func (c stepCase) String() string {
	switch {
	case c.small:
		c.small = false
		return c.String() + ", less shared memory"
	case c.prompt:
		return fmt.Sprintf("a prompt's tokens %d to %d", c.slots-c.rows, c.slots-1)
	case c.rows == 1:
		return fmt.Sprintf("1 sequence of %d slots", c.slots)
	}
	return fmt.Sprintf("%d sequences of %d slots", c.rows, c.slots)
}

// launched is a launch of a kernel.
type launched struct {
	stage string
	call  launch.Call
	bytes int64
}

func (l launched) Calls() ([]launch.Call, error) { return []launch.Call{l.call}, nil }

// times measures a step: all of it, each kernel by itself, and the step without the kernel.
func (k *card) times(s shape, c stepCase) (*Times, error) {
	read, err := k.speed(readAll(s.read))
	if err != nil {
		return nil, err
	}
	defer k.free()
	k.err = nil
	if c.small {
		all := k.kernels
		defer func() { k.kernels = all }()
		k.kernels = all.Small()
	}
	out := &Times{Layers: k.fitting(s, c)}
	out.Read, _ = read.PerSecond()
	s.layers = out.Layers
	all := k.step(s, c)
	if k.err != nil {
		return nil, k.err
	}
	of := func(chosen func(launched) bool) (time.Duration, error) {
		return k.graphTime(func() error {
			for _, l := range all {
				if chosen(l) {
					if err := k.kernels.Run(k.stream, l); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if out.Whole, err = of(func(launched) bool { return true }); err != nil {
		return nil, err
	}
	for _, l := range all {
		out.Bytes += l.bytes
		i := slices.IndexFunc(out.Kernels, func(t Time) bool { return t.Stage == l.stage && t.Kernel == l.call.Kernel })
		if i >= 0 {
			out.Kernels[i].Launches++
			continue
		}
		out.Kernels = append(out.Kernels, Time{Stage: l.stage, Kernel: l.call.Kernel, Launches: 1, Bytes: l.bytes})
	}
	for i := range out.Kernels {
		t := &out.Kernels[i]
		is := func(l launched) bool { return l.stage == t.Stage && l.call.Kernel == t.Kernel }
		alone, err := of(is)
		if err != nil {
			return nil, err
		}
		without, err := of(func(l launched) bool { return !is(l) })
		if err != nil {
			return nil, err
		}
		t.Alone, t.Within = alone/time.Duration(t.Launches), (out.Whole-without)/time.Duration(t.Launches)
	}
	return out, nil
}

// fitting returns the number of layers whose weights and caches fit the free memory.
func (k *card) fitting(s shape, c stepCase) int {
	free, _, err := k.MemoryInfo()
	k.fail(err)
	layer := int64(0)
	for _, m := range s.matrices() {
		data, scales := launch.PackedBytes(tensor.Q8_0, m[0], m[1])
		layer += data + scales
	}
	sequences := c.rows
	if c.prompt {
		sequences = 1
	}
	blocks := (c.slots + tensor.BlockSlots - 1) / tensor.BlockSlots
	layer += int64(sequences*s.kvheads*blocks) * int64(tensor.KVLayout{Type: tensor.BF16, KDim: s.dim, VDim: s.dim}.BlockBytes())
	head, scales := launch.PackedBytes(tensor.Q8_0, s.vocab, s.hidden)
	left := free - free/8 - head - scales - 4*int64(c.rows)*int64(8*s.hidden+6*s.ffn)
	return int(max(1, min(int64(s.layers), left/layer)))
}

// matrices returns the rows and columns of a layer's products: of queries, keys and values, of the output, of gate and up,
// and down.
func (s shape) matrices() [4][2]int {
	return [...][2]int{{(s.heads + 2*s.kvheads) * s.dim, s.hidden}, {s.hidden, s.heads * s.dim}, {2 * s.ffn, s.hidden}, {s.hidden, s.ffn}}
}

// step lists the kernels of a step with the operations of accelerator.Backend, over weights and caches of its own for
// each layer.
func (k *card) step(s shape, c stepCase) (all []launched) {
	n, width := c.rows, s.heads*s.dim
	floats := func(count int) cuda.Pointer { return k.filled(4 * int64(n) * int64(count)) }
	qkvWidth := s.matrices()[0][0]
	x, qkv, gateUp, weight := floats(s.hidden), floats(qkvWidth), floats(2*s.ffn), k.filled(4*int64(s.hidden))
	norms, attended, gated := k.rounded(n*s.hidden), k.rounded(n*width), k.rounded(n*s.ffn)
	plain, rotation := floats(width), launch.Rotation{Cos: floats(s.dim / 2), Sin: floats(s.dim / 2)}
	sequences := n
	if c.prompt {
		sequences = 1
	}
	cache, rows := k.caches(tensor.BF16, s.layers, s.kvheads, s.dim, sequences, c.slots)
	if c.prompt {
		rows = slices.Repeat(rows, n)
		for i := range rows {
			rows[i].Slot -= uint32(n - 1 - i)
		}
	}
	described := k.upload(launch.RowsBytes(rows))
	row := tensor.KVLayout{Type: tensor.BF16, KDim: s.dim, VDim: s.dim}.RowBytes()
	cached := int64(sequences) * int64(s.kvheads) * int64(c.slots) * int64(row)

	add := func(stage string, o launch.Operation, bytes ...int64) {
		calls, err := k.kernels.Calls(o)
		k.fail(err)
		for i, call := range calls {
			l := launched{stage: stage, call: call}
			if i < len(bytes) {
				l.bytes = bytes[i]
			}
			all = append(all, l)
		}
	}
	weights := func(m [2]int) (launch.Weight, int64) {
		data, scales := launch.PackedBytes(tensor.Q8_0, m[0], m[1])
		return launch.Weight{Type: tensor.Q8_0, Rows: m[0], Cols: m[1], Data: k.filled(data), Scales: k.filled(scales)}, data + scales
	}
	product := func(stage string, m [2]int, n int, from launch.Rounded, y, residual cuda.Pointer) {
		w, bytes := weights(m)
		add(stage, launch.Product{W: w, Rounded: from, N: n, Y: y, LdY: m[0], Residual: residual}, bytes)
	}
	norm := func(stage string, n int) {
		add(stage, launch.Norm{X: x, Weight: weight, Eps: 1e-5, To: norms, Rows: n, Cols: s.hidden})
	}
	attend := launch.Attend{
		Cache: cache, Q: qkv, LdQ: qkvWidth, Heads: s.heads, Scale: 0.1, Rows: described, N: n, Slots: c.slots,
		Prompt: c.prompt, LdOut: width, To: attended,
	}
	if c.prompt {
		attend.Out = plain
	}
	if need := attend.ScratchBytes(); need > 0 {
		attend.Scratch = k.alloc(int(need))
	}
	reads := []int64{cached}
	if attend.Splits() {
		reads = []int64{cached / 2, cached / 2}
	}
	m := s.matrices()
	for i := range s.layers {
		if k.err != nil {
			return nil
		}
		attend.Index = i
		norm("norm of attention", n)
		product("queries, keys, values", m[0], n, norms, qkv, 0)
		if attend.Rotates() {
			attend.Rotation = rotation
		} else {
			add("rotation", launch.RopeWrite{Cache: attend.Cache, Rotation: rotation, QKV: qkv, Ld: qkvWidth, Heads: s.heads, Rows: described, N: n})
		}
		add("attention", attend, reads...)
		product("output", m[1], n, attended, x, x)
		norm("norm of the FFN", n)
		product("gate and up", m[2], n, norms, gateUp, 0)
		add("activation", launch.Gate{
			Activation: tensor.SiLU, Gate: gateUp, Up: gateUp.Add(4 * int64(s.ffn)), Ld: 2 * s.ffn, To: gated, Rows: n,
			Cols: s.ffn,
		})
		product("down", m[3], n, gated, x, x)
	}
	last := n
	if c.prompt {
		last = 1
	}
	logits := k.alloc(4 * last * s.vocab)
	norm("last norm", last)
	product("logits", [2]int{s.vocab, s.hidden}, last, norms, logits, 0)
	add("best token", launch.Best{X: logits, Ld: s.vocab, Index: k.alloc(4 * last), Value: k.alloc(4 * last),
		Scratch: k.alloc(int(launch.BestBytes(last, s.vocab))), Rows: last, Cols: s.vocab})
	return all
}
