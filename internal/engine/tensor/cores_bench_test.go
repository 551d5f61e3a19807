package tensor

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/peak"
)

// coresModel is the products of llama-3.2-1b in the order of a step.
type coresModel struct {
	w     [][]*Weight // by product
	bytes float64
	ops   float64 // per token
}

func newCoresModel(t testing.TB, dt DType, layers int) *coresModel {
	c := &coresModel{}
	pool := NewPool(0)
	defer pool.Close()
	product := func(cols int, rows ...int) {
		var ws []*Weight
		for _, r := range rows {
			w, err := NewWeight(dt, r, cols)
			if err != nil {
				t.Fatal(err)
			}
			const piece = 1 << 20
			pool.Run((len(w.data)+piece-1)/piece, func(i int) {
				words := unsafe.Slice((*uint64)(unsafe.Pointer(&w.data[i*piece])), min(piece, len(w.data)-i*piece)/8)
				s := uint64(i+r)*0x9e3779b97f4a7c15 + 1
				for j := range words {
					s = s*6364136223846793005 + 1442695040888963407
					words[j] = s>>3&0x1f1f1f1f1f1f1f1f | 0x2020202020202020
				}
			})
			c.bytes += float64(len(w.data))
			c.ops += 2 * float64(r*cols)
			ws = append(ws, w)
		}
		c.w = append(c.w, ws)
	}
	for range layers {
		product(2048, 2048, 512, 512)
		product(2048, 2048)
		product(2048, 8192, 8192)
		product(8192, 2048)
	}
	product(2048, 128256)
	return c
}

// step multiplies n tokens by all matrices.
func (c *coresModel) step(p *Pool, n int, x, y []float32) {
	var products [maxProducts]Product
	for _, ws := range c.w {
		at := 0
		for i, w := range ws {
			products[i] = Product{Y: y[at:], LdY: w.Rows, W: w, R1: w.Rows}
			at += n * w.Rows
		}
		p.MatMulMany(products[:len(ws)], x, ws[0].Cols, n)
	}
}

// read reads the same bytes, product by product in the tasks of one token, or all at once.
func (c *coresModel) read(p *Pool, apart bool) {
	const piece = 64 << 10
	var parts [][]byte
	flush := func() {
		p.Run(len(parts), func(i int) { kernel.Active.Peak.Read(&parts[i][0], len(parts[i])&^511) })
		parts = parts[:0]
	}
	for _, ws := range c.w {
		for _, w := range ws {
			for at := 0; at < len(w.data); at += piece {
				parts = append(parts, w.data[at:min(at+piece, len(w.data))])
			}
		}
		if apart {
			flush()
		}
	}
	if !apart {
		flush()
	}
}

// BenchmarkCores compares ways to read the weights of a step and to multiply by them, in turn, on
// any number of threads, alone: SHOAL_THREADS=16,8 go test -run '^$' -bench Cores -benchtime 1x
// ./internal/engine/tensor, with SHOAL_LAYERS of llama-3.2-1b (16) and SHOAL_ROUNDS (20). All ways
// give the same bits.
func BenchmarkCores(b *testing.B) {
	number := func(name string, n int) int {
		if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return v
		}
		return n
	}
	threads, layers, rounds := cmp.Or(os.Getenv("SHOAL_THREADS"), "1,2"), number("SHOAL_LAYERS", 16), number("SHOAL_ROUNDS", 20)
	ahead0, pass0, active0 := kernel.PrefetchAhead, kernel.PassBytes, kernel.Active
	kernels0 := *kernel.Active
	defer func() { kernel.PrefetchAhead, kernel.PassBytes, kernel.Active = ahead0, pass0, active0 }()
	type way struct {
		name string
		set  func()
		run  func(p *Pool)
	}
	for _, quant := range []string{"Q8_0", "Q4_0"} {
		dt := map[string]DType{"Q8_0": Q8_0, "Q4_0": Q4_0}[quant]
		c := newCoresModel(b, dt, layers)
		most := 128
		x := make([]float32, most*8192)
		for i := range x {
			x[i] = float32(i%17-8) * 0.1
		}
		y := make([]float32, most*128256)
		for _, th := range strings.Split(threads, ",") {
			n, _ := strconv.Atoi(th)
			p := NewPool(n)
			small, err := peak.NewProbe(p, 512<<20)
			if err != nil {
				b.Fatal(err)
			}
			big, err := peak.NewProbe(p, int(c.bytes))
			if err != nil {
				b.Fatal(err)
			}
			step := func(tokens int) func(p *Pool) { return func(p *Pool) { c.step(p, tokens, x, y) } }
			one := step(1)
			ahead := func(n int) func() {
				return func() { kernel.PrefetchAhead = n; clear(kernel.Active.Rising[:]) }
			}
			ways := []way{
				{"read 512 MB again and again", nil, func(*Pool) { small.Read(c.bytes) }},
				{"read as many bytes as the weights", nil, func(*Pool) { big.Read(c.bytes) }},
				{"read the weights, one run", nil, func(p *Pool) { c.read(p, false) }},
				{"read the weights, product by product", nil, func(p *Pool) { c.read(p, true) }},
				{"1 token, as it is", nil, one},
				{"1 token, own lines", ahead(0), one}, {"1 token, 1 KB ahead", ahead(1 << 10), one}, {"1 token, 2 KB ahead", ahead(2 << 10), one},
				{"1 token, 4 KB ahead", ahead(4 << 10), one}, {"1 token, 8 KB ahead", ahead(8 << 10), one},
				{"1 token, 16 KB ahead", ahead(16 << 10), one},
			}
			if dt == Q8_0 {
				pass := func(n int) func() { return func() { kernel.PassBytes = n } }
				for _, tokens := range []int{16, 96} {
					s := step(tokens)
					name := fmt.Sprintf("%d tokens, ", tokens)
					ways = append(ways, way{name + "as it is", nil, s}, way{name + "pass 16 KB", pass(16 << 10), s},
						way{name + "pass 64 KB", pass(64 << 10), s}, way{name + "pass 128 KB", pass(128 << 10), s},
						way{name + "no spread", func() { clear(kernel.Active.Spread[:]) }, s})
				}
			}
			sums := map[int]uint64{}
			took := make([][]time.Duration, len(ways))
			for r := range rounds + 1 {
				for i, w := range ways {
					if strings.HasPrefix(w.name, "96") && r > max(1, rounds/4) {
						continue
					}
					kernels := kernels0
					kernel.PrefetchAhead, kernel.PassBytes, kernel.Active = ahead0, pass0, &kernels
					if w.set != nil {
						w.set()
					}
					began := time.Now()
					w.run(p)
					if r == 0 && !strings.HasPrefix(w.name, "read") {
						h := fnv.New64()
						h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&y[0])), 4*128256))
						var tokens int
						fmt.Sscanf(w.name, "%d token", &tokens)
						if want, ok := sums[tokens]; ok && want != h.Sum64() {
							b.Errorf("%s, %v: other bits", w.name, dt)
						}
						sums[tokens] = h.Sum64()
					}
					if r > 0 {
						took[i] = append(took[i], time.Since(began))
					}
				}
			}
			vnni := peak.VNNI(p, 300*time.Millisecond)
			b.Logf("%v %d threads, %.0f MB, VNNI %.0f GOP/s", quant, n, c.bytes/1e6, vnni)
			for i, w := range ways {
				slices.Sort(took[i])
				best, mid := took[i][0].Seconds(), took[i][len(took[i])/2].Seconds()
				tokens := 0
				fmt.Sscanf(w.name, "%d token", &tokens)
				b.Logf("%-38s best %7.2f ms, median %7.2f ms: %6.1f, %6.1f GB/s, %.3f, %.3f of VNNI",
					w.name, best*1e3, mid*1e3, c.bytes/best/1e9, c.bytes/mid/1e9,
					c.ops*float64(tokens)/best/1e9/vnni, c.ops*float64(tokens)/mid/1e9/vnni)
			}
			_, _ = small.Close(), big.Close()
			p.Close()
		}
		for _, ws := range c.w {
			for _, w := range ws {
				_ = w.Close()
			}
		}
	}
}
