package probe

import (
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Speed is the time of an operation, in a graph over memory that no cache holds.
type Speed struct {
	Time  time.Duration `json:"time_ns"`
	Bytes int64         `json:"bytes,omitempty"`      // that it must read from the card's memory
	Ops   int64         `json:"operations,omitempty"` // a multiply-add is two
}

// PerSecond returns the rates of bytes and of operations.
func (s Speed) PerSecond() (bytes, ops float64) {
	return float64(s.Bytes) / s.Time.Seconds(), float64(s.Ops) / s.Time.Seconds()
}

// measurement prepares an operation. Copy i of its data is of another part of the memory.
type measurement struct {
	name       string
	bytes, ops int64
	prepare    func(k *card, copies int) func(i int) launch.Operation
}

// Shapes of a model with 8 billion parameters, and of one with 1 billion.
const (
	hidden, intermediate, vocab       = 4096, 14336, 128256
	heads, kvheads, dim               = 32, 8, 128
	smallHidden                       = 2048
	cacheBytes                  int64 = 256 << 20 // memory that measurements cycle through, more than any cache holds
)

// measurements begin with that of the memory, to which others are compared.
func measurements() (all []measurement) {
	all = append(all, readAll(readBytes))
	for _, t := range []tensor.DType{tensor.Q8_0, tensor.Q4_0, tensor.BF16} {
		for _, s := range [][2]int{
			{smallHidden, smallHidden}, {hidden, hidden}, {2 * intermediate, hidden}, {hidden, intermediate}, {vocab, hidden},
		} {
			for _, n := range []int{1, 8, 16, 32, 64, 512} {
				switch {
				case s[0] == vocab && n > 1, s[0] == smallHidden && n > 8, n > 64 && s[0] != 2*intermediate && s[1] != intermediate:
					continue
				case t == tensor.BF16 && n != 1 && n != 8 && n != 64:
					continue
				}
				all = append(all, product(t, s[0], s[1], n))
			}
		}
	}
	for _, n := range []int{1, 16, 512} {
		all = append(all, norm(n), gate(n), ropeWrite(n))
	}
	all = append(all, best())
	for _, s := range [][2]int{{1, 512}, {1, 1024}, {1, 4096}, {1, 8192}, {1, 32768}, {16, 1024}, {16, 4096}} {
		all = append(all, decode(tensor.BF16, s[0], s[1], 0))
	}
	for _, slots := range []int{4096, 8192, 32768} {
		all = append(all, decode(tensor.BF16, 1, slots, 1), decode(tensor.BF16, 1, slots, 4))
	}
	all = append(all, decode(tensor.BF16, 16, 1024, 4), decode(tensor.F32, 1, 8192, 0), decode(tensor.Int8, 1, 8192, 0),
		decode(tensor.Int8, 16, 4096, 0))
	for _, before := range []int{0, 3584, 15872} {
		all = append(all, prompt(before, 512))
	}
	return all
}

// filled allocates memory with a pattern of small numbers in all types.
func (k *card) filled(n int64) cuda.Pointer {
	p := k.alloc(int(n))
	if k.err == nil {
		k.fail(k.stream.Fill(p, 0x3c003c00, n/4))
	}
	return p
}

// reading is an operation that only reads memory.
type reading struct {
	from, out cuda.Pointer
	bytes     int64
	blocks    int
}

func (o reading) Calls() ([]launch.Call, error) {
	return []launch.Call{{
		Kernel: "read_all", Grid: cuda.Grid{X: o.blocks, Threads: 512}, Args: []any{o.from, uint64(o.bytes / 16), o.out},
	}}, nil
}

func readAll(n int64) measurement {
	return measurement{"reading memory", n, 0, func(k *card, _ int) func(i int) launch.Operation {
		o := reading{k.filled(n), k.alloc(256), n, 4 * k.Multiprocessors}
		return func(int) launch.Operation { return o }
	}}
}

func product(t tensor.DType, rows, cols, n int) measurement {
	data, scales := launch.PackedBytes(t, rows, cols)
	return measurement{fmt.Sprintf("%v %dx%d, %d rows", t, rows, cols, n), data + scales,
		2 * int64(rows) * int64(cols) * int64(n), func(k *card, copies int) func(i int) launch.Operation {
			w, s := k.filled(data*int64(copies)), cuda.Pointer(0)
			if scales > 0 {
				s = k.filled(scales * int64(copies))
			}
			bytes, xscales := launch.RoundedBytes(n, cols)
			x := k.filled(4 * int64(n) * int64(cols))
			to := launch.Rounded{Bytes: k.filled(bytes), Scales: k.filled(xscales)}
			y := k.filled(4 * int64(n) * int64(rows))
			return func(i int) launch.Operation {
				at := launch.Weight{Type: t, Rows: rows, Cols: cols, Data: w.Add(int64(i) * data), Scales: s.Add(int64(i) * scales)}
				return launch.Product{W: at, X: x, Rounded: to, N: n, Y: y, LdY: rows}
			}
		}}
}

func norm(n int) measurement {
	return measurement{fmt.Sprintf("RMS norm and rounding of %d, %d rows", hidden, n), 4 * int64(n) * hidden, 0,
		func(k *card, _ int) func(i int) launch.Operation {
			o := launch.Norm{
				X: k.filled(4 * int64(n) * hidden), Weight: k.filled(4 * hidden), Eps: 1e-5, To: k.rounded(n * hidden), Rows: n,
				Cols: hidden,
			}
			return func(int) launch.Operation { return o }
		}}
}

func gate(n int) measurement {
	size := 4 * int64(n) * intermediate
	return measurement{fmt.Sprintf("SiLU and rounding of %d, %d rows", intermediate, n), 2 * size, 0,
		func(k *card, _ int) func(i int) launch.Operation {
			o := launch.Gate{
				Gate: k.filled(size), Up: k.filled(size), Ld: intermediate, To: k.rounded(n * intermediate),
				Rows: n, Cols: intermediate,
			}
			return func(int) launch.Operation { return o }
		}}
}

func best() measurement {
	return measurement{fmt.Sprintf("best of %d logits", vocab), 4 * vocab, 0, func(k *card, _ int) func(i int) launch.Operation {
		o := launch.Best{X: k.filled(4 * vocab), Ld: vocab, Index: k.alloc(4), Value: k.alloc(4),
			Scratch: k.alloc(int(launch.BestBytes(1, vocab))), Rows: 1, Cols: vocab}
		return func(int) launch.Operation { return o }
	}}
}

// sequences returns the caches of one layer for sequences of equal length, and the rows of their last slots.
func (k *card) sequences(t tensor.DType, n, slots int) (launch.Cache, []launch.Row) {
	return k.caches(t, 1, kvheads, dim, n, slots)
}

// caches are those of some layers.
func (k *card) caches(t tensor.DType, layers, kvheads, dim, n, slots int) (c launch.Cache, rows []launch.Row) {
	layout := tensor.KVLayout{Type: t, KDim: dim, VDim: dim}
	stride := (slots + tensor.BlockSlots - 1) / tensor.BlockSlots
	tables := make([]uint32, n*layers*kvheads*stride)
	for i := range tables {
		tables[i] = uint32(i)
	}
	for i := range n {
		rows = append(rows, launch.Row{Slot: uint32(slots - 1), Table: uint32(i * layers * kvheads * stride), Stride: uint32(stride)})
	}
	return launch.Cache{
		Type: t, Arena: k.filled(int64(len(tables)) * int64(layout.BlockBytes())), Tables: k.upload(tables),
		KVHeads: kvheads, HeadDim: dim,
	}, rows
}

func ropeWrite(n int) measurement {
	const ld = (heads + 2*kvheads) * dim
	return measurement{fmt.Sprintf("rotation and cache write, %d rows", n), 4 * int64(n) * ld, 0,
		func(k *card, _ int) func(i int) launch.Operation {
			c, rows := k.sequences(tensor.BF16, n, 64)
			o := launch.RopeWrite{
				Cache: c, QKV: k.filled(4 * int64(n) * ld), Ld: ld, Heads: heads,
				Rotation: launch.Rotation{Cos: k.filled(2 * int64(n) * dim), Sin: k.filled(2 * int64(n) * dim)},
				Rows:     k.upload(launch.RowsBytes(rows)), N: n,
			}
			return func(int) launch.Operation { return o }
		}}
}

// attendBytes returns the size of the keys and values of a layer over some slots.
func attendBytes(t tensor.DType, slots int) int64 {
	return kvheads * int64(slots) * int64(tensor.KVLayout{Type: t, KDim: dim, VDim: dim}.RowBytes())
}

// decode measures attention of one token of each of n sequences; each copy is another set of
// sequences. Parts are those of launch.Attend.
func decode(t tensor.DType, n, slots, parts int) measurement {
	bytes := int64(n) * attendBytes(t, slots)
	name := fmt.Sprintf("attention over %v, %d sequences of %d slots", t, n, slots)
	if parts > 0 {
		name += fmt.Sprintf(", parts %d", parts)
	}
	return measurement{name, bytes, 4 * int64(n) * int64(slots) * heads * dim, func(k *card, copies int) func(i int) launch.Operation {
		c, rows := k.sequences(t, n*copies, slots)
		all := k.upload(launch.RowsBytes(rows))
		const width = heads * dim
		o := launch.Attend{
			Cache: c, Q: k.filled(4 * int64(n) * width), LdQ: width, Heads: heads, Scale: 0.1, N: n, Slots: slots,
			Parts: parts, To: k.rounded(n * width),
		}
		o.Scratch = k.alloc(int(o.ScratchBytes()))
		return func(i int) launch.Operation {
			o.Rows = all.Add(int64(i * n * launch.RowBytes))
			return o
		}
	}}
}

// prompt measures attention of a chunk of n tokens that some slots precede.
func prompt(before, n int) measurement {
	const width = heads * dim
	pairs := int64(n)*int64(before) + int64(n)*int64(n+1)/2
	return measurement{fmt.Sprintf("attention of a prompt, %d tokens after %d", n, before), attendBytes(tensor.BF16, before+n),
		4 * pairs * width, func(k *card, _ int) func(i int) launch.Operation {
			c, rows := k.sequences(tensor.BF16, 1, before+n)
			all := make([]launch.Row, n)
			for i := range all {
				all[i] = rows[0]
				all[i].Slot = uint32(before + i)
			}
			o := launch.Attend{Cache: c, Q: k.filled(4 * int64(n) * width), LdQ: width, Heads: heads, Scale: 0.1,
				Rows: k.upload(launch.RowsBytes(all)), N: n, Slots: before + n, Prompt: true,
				Out: k.alloc(4 * n * width), LdOut: width}
			return func(int) launch.Operation { return o }
		}}
}

// maxLaunches bounds the launches in the graph of a measurement.
const maxLaunches = 64

// speed measures an operation: launches over all copies in one graph, the fastest of some runs.
func (k *card) speed(m measurement) (*Speed, error) {
	defer k.free()
	k.err = nil
	copies := 1
	if m.bytes > 1<<20 {
		copies = int(min(maxLaunches, max(1, cacheBytes/m.bytes)))
	}
	operation := m.prepare(k, copies)
	n := (16 + copies - 1) / copies * copies
	if k.err != nil {
		return nil, k.err
	}
	best, err := k.graphTime(func() error {
		for i := range n {
			if err := k.kernels.Run(k.stream, operation(i%copies)); err != nil {
				return err
			}
		}
		return nil
	})
	return &Speed{Time: best / time.Duration(n), Bytes: m.bytes, Ops: m.ops}, err
}

// graphTime returns the time of a graph of the kernels that run puts into the stream, the fastest of some runs.
func (k *card) graphTime(run func() error) (best time.Duration, err error) {
	if err := run(); err != nil { // the first launch of a kernel may load its code
		return 0, err
	}
	if err := k.stream.Wait(); err != nil {
		return 0, err
	}
	graph, err := k.stream.Record(run)
	if err != nil {
		return 0, err
	}
	start, err := k.Event()
	if err != nil {
		return 0, err
	}
	end, err := k.Event()
	if err != nil {
		return 0, err
	}
	for range k.runs {
		k.fail(start.Record(k.stream))
		k.fail(graph.Launch(k.stream))
		k.fail(end.Record(k.stream))
		d, err := end.Since(start)
		k.fail(err)
		if best == 0 || d < best {
			best = d
		}
	}
	k.fail(errors.Join(start.Close(), end.Close(), graph.Close()))
	return best, k.err
}
