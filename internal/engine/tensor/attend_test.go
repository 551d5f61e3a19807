package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// naiveRun is the definition of a run, for one (query, head): slots in order, blocks of 64, online
// softmax. It reads the cache one slot at a time. Sums are not divided yet. some is false if no
// slot is valid.
func naiveRun(q []float32, weight Score, l KVLayout, blocks [][]byte, n int, valid []uint64) (o []float32,
	top float32, sum kernel.Lanes, some bool) {
	k, v := make([]float32, l.KDim), make([]float32, l.VDim)
	o, top = make([]float32, l.VDim), kernel.NegInf
	for b := 0; b*BlockSlots < n; b++ {
		var score [BlockSlots]float32
		next, any := top, false
		use := func(j int) bool {
			s := b*BlockSlots + j
			return s < n && (valid == nil || valid[b]>>j&1 != 0)
		}
		for j := range score {
			if !use(j) {
				continue
			}
			any = true
			kscale, _ := rawRow(l, blocks[b], j, k, v)
			acc := float32(0)
			for i := range k {
				acc = f32.FMA(k[i], q[i], acc)
			}
			if l.Type == Int8 {
				acc *= kscale
			}
			score[j] = acc * weight.Scale
			if weight.Cap != 0 {
				portable().SoftCap(score[j:j+1], weight.Cap)
			}
			if score[j] > next {
				next = score[j]
			}
		}
		if !any {
			continue
		}
		some = true
		c := f32.Exp(top - next)
		for i := range sum {
			sum[i] *= c
		}
		for i := range o {
			o[i] *= c
		}
		for j := range score {
			if !use(j) {
				continue
			}
			_, vscale := rawRow(l, blocks[b], j, k, v)
			p := f32.Exp(score[j] - next)
			sum[j%16] += p
			if l.Type == Int8 {
				p *= vscale
			}
			for i := range o {
				o[i] = f32.FMA(p, v[i], o[i])
			}
		}
		top = next
	}
	return o, top, sum, some
}

// naiveAttend is the definition, for one (query, head): runs of RunBlocks blocks, each from its own
// start, folded in order.
func naiveAttend(q []float32, weight Score, l KVLayout, blocks [][]byte, n int, valid []uint64) []float32 {
	var o []float32
	var top float32
	var sum kernel.Lanes
	some := false
	for b := 0; b*BlockSlots < n; b += RunBlocks {
		var mask []uint64
		if valid != nil {
			mask = valid[b:]
		}
		ro, rtop, rsum, any := naiveRun(q, weight, l, blocks[b:], min(n-b*BlockSlots, RunSlots), mask)
		switch {
		case !any:
			continue
		case !some:
			o, top, sum, some = ro, rtop, rsum, true
			continue
		}
		m := max(top, rtop)
		x, y := f32.Exp(top-m), f32.Exp(rtop-m)
		for i := range o {
			o[i] = float32(o[i]*x) + float32(ro[i]*y)
		}
		for i := range sum {
			sum[i] = float32(sum[i]*x) + float32(rsum[i]*y)
		}
		top = m
	}
	if !some {
		return make([]float32, l.VDim)
	}
	inv := 1 / (sum.Sum() + weight.sink(0, top))
	for i := range o {
		o[i] *= inv
	}
	return o
}

// rawRow is Get without the scales of Int8, which it returns.
func rawRow(l KVLayout, block []byte, slot int, k, v []float32) (float32, float32) {
	l.Get(block, slot, k, v)
	if l.Latent && l.Type != F32 { // widened by adding to +0
		for i := range k {
			k[i] += 0
		}
		copy(v, k)
	}
	if l.Type != Int8 || l.Latent {
		return 1, 1
	}
	b, bv := int8s(block), int8s(block[l.valuesAt():])[slot*l.VDim:]
	for i := range k {
		k[i] = float32(b[l.at(slot, i)])
	}
	for i := range v {
		v[i] = float32(bv[i])
	}
	return l.scales(block, 0)[slot], l.scales(block, 1)[slot]
}

// newCache fills n slots; everything else is garbage, NaN included.
func newCache(r *rand.Rand, l KVLayout, n int) [][]byte {
	blocks := make([][]byte, (n+BlockSlots-1)/BlockSlots)
	for i := range blocks {
		blocks[i] = make([]byte, l.BlockBytes())
		for j := range blocks[i] {
			blocks[i][j] = 0xff
		}
	}
	for s := range n {
		l.Put(blocks[s/BlockSlots], s%BlockSlots, normal(r, l.KDim), normal(r, l.VDim))
	}
	return blocks
}

var layouts = []KVLayout{
	{Type: F32, KDim: 8, VDim: 8}, {Type: F32, KDim: 32, VDim: 32}, {Type: F32, KDim: 64, VDim: 64},
	{Type: F32, KDim: 128, VDim: 128}, {Type: F32, KDim: 40, VDim: 72},
	{Type: BF16, KDim: 8, VDim: 8}, {Type: BF16, KDim: 32, VDim: 32}, {Type: BF16, KDim: 64, VDim: 64},
	{Type: BF16, KDim: 128, VDim: 128}, {Type: BF16, KDim: 96, VDim: 24}, {Type: BF16, KDim: 576, VDim: 512},
	{Type: F32, KDim: 40, VDim: 32, Latent: true}, {Type: BF16, KDim: 40, VDim: 32, Latent: true},
	{Type: Int8, KDim: 72, VDim: 56, Latent: true}, {Type: Int8, KDim: 576, VDim: 512, Latent: true},
	{Type: BF16, KDim: 576, VDim: 512, Latent: true},
	{Type: Int8, KDim: 8, VDim: 8}, {Type: Int8, KDim: 64, VDim: 64}, {Type: Int8, KDim: 128, VDim: 128}, {Type: Int8, KDim: 72, VDim: 104},
}

func TestAttendSameBits(t *testing.T) {
	var s AttnScratch
	for _, l := range layouts {
		if small() && l.KDim > 96 {
			continue
		}
		r := rng(uint64(l.KDim))
		scale := float32(1 / math.Sqrt(float64(l.KDim)))
		for _, n := range []int{1, 5, 16, 17, 63, 64, 65, 130, 200} {
			if l.KDim > 200 && n != 130 || small() && (n == 16 || n == 63 || n > 130) {
				continue
			}
			blocks := newCache(r, l, n)
			for _, g := range []int{1, 2, 3, 4, 7, 40} {
				if g > 16 && (!l.Latent || n != 130 && n != 17) {
					continue
				}
				q := normal(r, g*l.KDim)
				masks := [][]uint64{nil}
				chunks := []uint64{0xff000000000000ff, 0xff00, 0xff0000ff0000ff0, 1 << 40}
				masks = append(masks, chunks)
				if g <= 2 {
					random, gap, none := make([]uint64, 4), make([]uint64, 4), make([]uint64, 4)
					for i := range random {
						random[i] = r.Uint64() & r.Uint64()
						gap[i] = uint64(0xffffffff000000ff) << (i * 4)
					}
					gap[0] = 0
					masks = append(masks, random, gap, none)
				}
				for m, valid := range masks {
					want := make([]float32, 0, g*l.VDim)
					score := Score{Scale: scale}
					if (m+g+n)%3 == 0 {
						score.Cap = 1.5
					}
					if (m+g+n)%2 == 0 {
						score.Sinks = [][]float32{normal(r, g)}
					}
					for h := range g {
						want = append(want, naiveAttend(q[h*l.KDim:][:l.KDim], score.Heads(0, h, 1), l, blocks, n, valid)...)
					}
					forEach(t, func(t *testing.T) {
						out := make([]float32, g*l.VDim)
						Attend(out, q, g, score.Heads(0, 0, g), l, blocks, n, valid, &s)
						sameBits(t, fmt.Sprintf("%+v %+v n=%d g=%d mask %d", l, score, n, g, m), out, want)
					})
				}
			}
		}
	}
}

func TestAttendCausalIsAttend(t *testing.T) {
	var s AttnScratch
	for _, l := range layouts {
		if l.KDim > 200 || small() && l.KDim > 64 {
			continue
		}
		r := rng(uint64(l.VDim))
		for _, c := range []struct{ nq, first, g int }{{1, 0, 1}, {3, 0, 2}, {20, 60, 3}, {70, 0, 1},
			{90, 37, 4}, {33, 128, 1}, {5, 62, 7}, {9, 60, 20}} {
			blocks := newCache(r, l, c.first+c.nq)
			ldq, ldo := c.g*l.KDim+5, c.g*l.VDim+3
			q := normal(r, c.nq*ldq)
			windows := []int{0, 1, 63, 65, 100, -40, -64, -70}
			if small() {
				windows = []int{0, 65, -40}
			}
			for _, window := range windows {
				score := Score{Scale: 0.3}
				if window%2 > 0 {
					score.Cap = 2
				} else if window > 0 {
					score.Sinks = [][]float32{nil, normal(r, c.g)}
					score = score.Heads(1, 0, c.g)
				}
				want := make([]float32, c.nq*ldo)
				for i := range c.nq {
					n := c.first + i + 1
					var valid []uint64
					if window != 0 {
						oldest := max(0, n-window)
						if window < 0 { // chunks
							oldest = (n - 1) / -window * -window
						}
						valid = make([]uint64, (n+63)/64)
						for slot := oldest; slot < n; slot++ {
							valid[slot/64] |= 1 << (slot % 64)
						}
					}
					Attend(want[i*ldo:], q[i*ldq:], c.g, score, l, blocks, n, valid, &s)
				}
				forEach(t, func(t *testing.T) {
					out := make([]float32, c.nq*ldo)
					AttendCausal(out, ldo, q, ldq, c.nq, c.first, window, c.g, score, l, blocks, &s)
					sameBits(t, fmt.Sprintf("%+v %+v window %d", l, c, window), out, want)
				})
			}
		}
	}
}

func TestAttendIsAttention(t *testing.T) {
	var s AttnScratch
	l := KVLayout{Type: F32, KDim: 32, VDim: 40}
	r := rng(9)
	const n = 150
	blocks := make([][]byte, 3)
	for i := range blocks {
		blocks[i] = make([]byte, l.BlockBytes())
	}
	ks, vs := make([][]float32, n), make([][]float32, n)
	for i := range n {
		ks[i], vs[i] = normal(r, l.KDim), normal(r, l.VDim)
		for j := range ks[i] {
			ks[i][j] = float32(r.NormFloat64())
		}
		l.Put(blocks[i/64], i%64, ks[i], vs[i])
	}
	q := make([]float32, l.KDim)
	for i := range q {
		q[i] = float32(r.NormFloat64())
	}
	want, sum := make([]float64, l.VDim), 0.0
	for i := range n {
		dot := 0.0
		for j := range q {
			dot += float64(q[j]) * float64(ks[i][j])
		}
		p := math.Exp(dot * 0.2)
		sum += p
		for j := range want {
			want[j] += p * float64(vs[i][j])
		}
	}
	forEach(t, func(t *testing.T) {
		out := make([]float32, l.VDim)
		Attend(out, q, 1, Score{Scale: 0.2}, l, blocks, n, nil, &s)
		for j := range out {
			if d := math.Abs(float64(out[j]) - want[j]/sum); d > 1e-4*math.Max(1, math.Abs(want[j]/sum)) {
				t.Fatalf("element %d is %v, want %v", j, out[j], want[j]/sum)
			}
		}
	})
}

func TestAttendOfStrangeNumbers(t *testing.T) {
	var s AttnScratch
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	forEach(t, func(t *testing.T) {
		for _, l := range layouts {
			for _, v := range []float32{inf, -inf, nan, 3e38} {
				block := make([]byte, l.BlockBytes())
				k, val := make([]float32, l.KDim), make([]float32, l.VDim)
				for i := range 20 {
					l.Put(block, i, k, val)
				}
				k[1], val[2] = v, v
				l.Put(block, 7, k, val)
				q := make([]float32, l.KDim)
				q[1] = v
				out := make([]float32, l.VDim)
				Attend(out, q, 1, Score{Scale: 1}, l, [][]byte{block}, 20, nil, &s)
				AttendCausal(out, l.VDim, q, l.KDim, 1, 19, 0, 1, Score{Scale: 1}, l, [][]byte{block}, &s)
			}
		}
	})
}

func TestWholeBlocksOfStrangeNumbers(t *testing.T) {
	var s AttnScratch
	for _, l := range layouts {
		if l.Latent || l.KDim > 200 || small() && l.KDim > 64 {
			continue
		}
		for _, v := range []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 3e38, 1e-45} {
			for _, g := range []int{1, 2, 3, 4} {
				r := rng(17)
				blocks := newCache(r, l, 200)
				k, val := normal(r, l.KDim), normal(r, l.VDim)
				k[1], val[2] = v, v
				l.Put(blocks[1], 7, k, val)
				q := normal(r, g*l.KDim)
				allEqual(t, fmt.Sprintf("%+v g=%d %v", l, g, v), func() []float32 {
					out := make([]float32, g*l.VDim)
					Attend(out, q, g, Score{Scale: 0.2}, l, blocks, 200, nil, &s)
					return out
				})
			}
		}
	}
}

func TestSlotsMoveUnchanged(t *testing.T) {
	for _, l := range layouts {
		r := rng(11)
		a, b, c := make([]byte, l.BlockBytes()), make([]byte, l.BlockBytes()), make([]byte, l.BlockBytes())
		row := make([]byte, l.RowBytes())
		k, v := make([]float32, l.KDim), make([]float32, l.VDim)
		k2, v2 := make([]float32, l.KDim), make([]float32, l.VDim)
		for slot := range BlockSlots {
			l.Put(a, slot, normal(r, l.KDim), normal(r, l.VDim))
		}
		for slot := range BlockSlots {
			l.Fetch(a, slot)
			l.CopySlot(b, BlockSlots-1-slot, a, slot)
			l.ExportRow(row, a, slot)
			l.ImportRow(c, slot, row)
			l.Get(a, slot, k, v)
			l.Get(b, BlockSlots-1-slot, k2, v2)
			sameBits(t, "copied key", k2, k)
			sameBits(t, "copied value", v2, v)
		}
		if string(a) != string(c) {
			t.Errorf("%+v: a block that was exported and imported slot by slot differs", l)
		}
		if l.RowBytes()*BlockSlots != l.BlockBytes() {
			t.Errorf("%+v: rows of %d bytes, blocks of %d", l, l.RowBytes(), l.BlockBytes())
		}
	}
}

func TestInt8RowsAreClose(t *testing.T) {
	l := KVLayout{Type: Int8, KDim: 64, VDim: 64}
	block := make([]byte, l.BlockBytes())
	r := rng(12)
	k, v := make([]float32, 64), make([]float32, 64)
	for i := range k {
		k[i], v[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
	}
	l.Put(block, 5, k, v)
	k2, v2 := make([]float32, 64), make([]float32, 64)
	l.Get(block, 5, k2, v2)
	for i := range k {
		if math.Abs(float64(k[i]-k2[i])) > 0.02 || math.Abs(float64(v[i]-v2[i])) > 0.02 {
			t.Fatalf("element %d: %v -> %v, %v -> %v", i, k[i], k2[i], v[i], v2[i])
		}
	}
}

func TestLayoutValidate(t *testing.T) {
	for _, l := range []KVLayout{{Type: Q8_0, KDim: 64, VDim: 64}, {Type: F32, KDim: 0, VDim: 8}, {Type: F32, KDim: 8, VDim: 12},
		{Type: F32, KDim: 584, VDim: 8}, {Type: DType(77), KDim: 8, VDim: 8}, {Type: BF16, KDim: 64, VDim: 64, Latent: true}} {
		if l.Validate() == nil {
			t.Errorf("%+v is a layout", l)
		}
	}
}

func TestAttendAllocatesNothing(t *testing.T) {
	l := KVLayout{Type: BF16, KDim: 64, VDim: 64}
	blocks := newCache(rng(13), l, 100)
	var s AttnScratch
	q, out := make([]float32, 20*3*64), make([]float32, 20*3*64)
	call := func() {
		Attend(out, q, 3, Score{Scale: 0.1}, l, blocks, 100, nil, &s)
		AttendCausal(out, 3*64, q, 3*64, 20, 50, 0, 3, Score{Scale: 0.1}, l, blocks, &s)
	}
	call()
	if n := testing.AllocsPerRun(50, call); n > 0 {
		t.Errorf("%v allocations per call", n)
	}
}

// Prefetching depends on the CPU's maker, see TestMatMulWithEveryPrefetch.
func TestAttendWithEveryPrefetch(t *testing.T) {
	was := kernel.PrefetchAhead
	defer func() { kernel.PrefetchAhead = was }()
	const n = 5*BlockSlots + 7
	for _, dt := range []DType{F32, BF16, Int8} {
		l := KVLayout{Type: dt, KDim: 64, VDim: 64}
		blocks := newCache(rng(3), l, n)
		for g := 1; g <= 6; g++ {
			q := normal(rng(uint64(g)), g*l.KDim)
			var want []float32
			for _, ahead := range []int{0, 8 << 10} {
				kernel.PrefetchAhead = ahead
				var s AttnScratch
				out := make([]float32, g*l.VDim)
				Attend(out, q, g, Score{Scale: 0.1}, l, blocks, n, nil, &s)
				if want == nil {
					want = out
				}
				sameBits(t, fmt.Sprintf("%v, %d heads, %d bytes ahead", dt, g, ahead), out, want)
			}
		}
	}
}
