package bench

import (
	"fmt"
	"runtime"
	"time"

	"github.com/shoal-llm/shoal/tensor"
)

// Kernel is one kernel on one number of threads, its best call.
type Kernel struct {
	Name      string  `json:"name"`
	Threads   int     `json:"threads"`
	Micros    float64 `json:"micros"`
	GBs       float64 `json:"gbs"`              // bytes of weights, cache or vectors
	GFLOPS    float64 `json:"gflops,omitempty"` // or 10^9 integer operations
	ReadShare float64 `json:"bandwidth_share,omitempty"`
	PeakShare float64 `json:"peak_share,omitempty"`
	// Share is of what binds: the longer of the times that bandwidth and peak
	// allow, over the time it took. 0: the data lie in a cache, no ceiling.
	Share float64 `json:"share,omitempty"`
}

// Kernels are this machine's ceilings and what the kernels reach of them.
type Kernels struct {
	Machine  Machine   `json:"machine"`
	Ceilings []Ceiling `json:"ceilings"`
	Kernels  []Kernel  `json:"kernels"`
}

// kernelTime is how long each kernel is tried.
const kernelTime = 300 * time.Millisecond

// RunKernels measures on one thread and on all of them. show is told each line.
func RunKernels(threads int, show func(any)) (*Kernels, error) {
	if threads < 1 {
		threads = runtime.GOMAXPROCS(0)
	}
	k := &Kernels{Machine: ThisMachine()}
	show(k.Machine)
	for _, n := range []int{1, threads} {
		if n == 1 && len(k.Ceilings) > 0 {
			continue
		}
		if err := k.on(n, show); err != nil {
			return nil, err
		}
		if threads == 1 {
			break
		}
	}
	return k, nil
}

func (k *Kernels) on(threads int, show func(any)) error {
	p := tensor.NewPool(threads)
	defer p.Close()
	c, err := MeasureCeiling(p, ceilingTime)
	if err != nil {
		return err
	}
	k.Ceilings = append(k.Ceilings, c)
	show(c)
	add := func(name string, bytes, flops, peak float64, memory bool, f func()) {
		least := best(f)
		m := Kernel{Name: name, Threads: threads, Micros: least * 1e6, GBs: bytes / least / 1e9, GFLOPS: flops / least / 1e9}
		if memory {
			m.ReadShare, m.PeakShare = m.GBs/c.Read, m.GFLOPS/peak
			m.Share = max(m.ReadShare, m.PeakShare)
		} else if flops > 0 {
			m.PeakShare = m.GFLOPS / peak
			m.Share = m.PeakShare
		}
		k.Kernels = append(k.Kernels, m)
		show(m)
	}
	if err := products(p, c, add); err != nil {
		return err
	}
	attention(p, c, add)
	if threads == 1 {
		elementwise(add)
	}
	return nil
}

type adder func(name string, bytes, flops, peak float64, memory bool, f func())

// best is the least time of one call.
func best(f func()) float64 {
	f()
	least := time.Duration(1 << 62)
	for start := time.Now(); time.Since(start) < kernelTime; {
		t := time.Now()
		f()
		least = min(least, time.Since(t))
	}
	return max(least, 1).Seconds()
}

// products multiplies a matrix that no cache holds by 1 to 96 tokens.
func products(p *tensor.Pool, c Ceiling, add adder) error {
	const cols, most = 8192, 96
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16, tensor.Q8_0, tensor.Q4_0, tensor.IQ4_NL} {
		rows := int(matrixBytes / tensor.WeightBytes(dt, 64, cols) * 64)
		w, err := tensor.NewWeight(dt, rows, cols)
		if err != nil {
			return err
		}
		row := make([]float32, cols)
		for i := range row {
			row[i] = float32(i%17-8) * 0.1
		}
		p.Run((rows+63)/64, func(i int) {
			for r := i * 64; r < min(rows, (i+1)*64); r++ {
				w.SetRow(r, row)
			}
		})
		x, y := make([]float32, most*cols), make([]float32, most*rows)
		for i := range x {
			x[i] = float32(i%13-6) * 0.1
		}
		for _, n := range []int{1, 4, 16, 32, most} {
			add(fmt.Sprintf("matmul %v n=%d", dt, n), float64(w.Bytes()), 2*float64(rows*cols*n), c.peak(dt), true,
				func() { p.MatMul(y, rows, w, x, cols, n) })
		}
		if err := w.Close(); err != nil {
			return err
		}
	}
	return nil
}

// matrixBytes is several times the last-level cache of an ordinary machine.
const matrixBytes = 256 << 20

// attention of one KV head after 4096 tokens a task, a task a thread.
func attention(p *tensor.Pool, c Ceiling, add adder) {
	const n, nq = 4096, 32
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8} {
		for _, dim := range []int{64, 128} {
			l := tensor.KVLayout{Type: dt, KDim: dim, VDim: dim}
			heads := max(p.Threads(), attentionBytes/(n*l.RowBytes()))
			caches := make([][][]byte, heads)
			k := make([]float32, dim)
			p.Run(heads, func(h int) {
				for slot := range n {
					if slot%tensor.BlockSlots == 0 {
						caches[h] = append(caches[h], make([]byte, l.BlockBytes()))
					}
					k[0] = 1
					l.Put(caches[h][slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, k)
				}
			})
			scratch := make([]tensor.AttnScratch, heads)
			for _, g := range []int{1, 4} {
				q, out := make([]float32, nq*g*dim), make([]float32, heads*nq*g*dim)
				bytes, flops := float64(heads*n*l.RowBytes()), 4*float64(heads*n*g*dim)
				name := fmt.Sprintf("attention %v dim=%d heads=%d", dt, dim, g)
				add(name+" decode", bytes, flops, c.FMA, true, func() {
					p.Run(heads, func(h int) {
						tensor.Attend(out[h*nq*g*dim:], q, g, 0.1, l, caches[h], n, nil, &scratch[h])
					})
				})
				few := min(heads, 2*p.Threads())
				add(name+" prefill", 0, flops/float64(heads)*float64(few*nq), c.FMA, false, func() {
					p.Run(few, func(h int) {
						tensor.AttendCausal(out[h*nq*g*dim:], g*dim, q, g*dim, nq, n-nq, 0, g, 0.1, l, caches[h], &scratch[h])
					})
				})
			}
		}
	}
}

const attentionBytes = 128 << 20

func elementwise(add adder) {
	const n = 8192
	x, y, w := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i], w[i] = float32(i%29-14)*0.1, 1, 1
	}
	for _, e := range []struct {
		name  string
		bytes float64
		f     func()
	}{
		{"rmsnorm", 12 * n, func() { tensor.RMSNorm(y, x, w, 1e-5) }},
		{"add", 12 * n, func() { tensor.Add(y, w) }},
		{"silu*mul", 12 * n, func() { tensor.SiLUMul(y, x, w) }},
		{"argmax", 4 * n, func() { tensor.ArgMax(x) }},
		{"log-sum-exp", 4 * n, func() { tensor.LogSumExp(x) }},
	} {
		add(e.name+" 8192", e.bytes, 0, 0, false, e.f)
	}
}
