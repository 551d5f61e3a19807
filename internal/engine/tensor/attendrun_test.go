package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// longCache has n slots with few different contents, so that it is filled quickly.
func longCache(r *rand.Rand, l KVLayout, n int) [][]byte {
	some := newCache(r, l, 3*BlockSlots)
	blocks := make([][]byte, (n+BlockSlots-1)/BlockSlots)
	for i := range blocks {
		blocks[i] = some[i*i%len(some)]
	}
	return blocks
}

// holes are masks of some runs: one that starts with a hole, one without a slot, one of single
// slots.
func holes(blocks int) []uint64 {
	valid := make([]uint64, blocks)
	for i := range valid {
		switch valid[i] = ^uint64(0); {
		case i/RunBlocks == 1:
			valid[i] = 0
		case i%RunBlocks == 0:
			valid[i] <<= 9
		case i%RunBlocks == RunBlocks-1:
			valid[i] = 1 << 63
		}
	}
	return valid
}

// loaded loads runs into buffers of the scratch. It fills slots outside the mask with rows of other slots.
type loaded struct {
	t      *testing.T
	l      KVLayout
	blocks [][]byte
	valid  []uint64
	runs   int
}

func (x *loaded) loadRun(run int, dst [][]byte, s *AttnScratch) {
	x.runs++
	if len(dst) < 1 || len(dst) > RunBlocks {
		x.t.Errorf("%d blocks of run %d are loaded, want 1 to %d", len(dst), run, RunBlocks)
	}
	for i, b := range s.Blocks(len(dst), x.l.BlockBytes()) {
		at := run*RunBlocks + i
		other := x.blocks[(at+1)%len(x.blocks)]
		for slot := range BlockSlots {
			from := other
			if x.valid[at]>>slot&1 != 0 {
				from = x.blocks[at]
			}
			x.l.CopySlot(b, slot, from, slot)
		}
		dst[i] = b
	}
}

// TestAttendOfManyRuns compares every implementation with the definition of runs.
func TestAttendOfManyRuns(t *testing.T) {
	var s AttnScratch
	for _, l := range []KVLayout{{Type: F32, KDim: 8, VDim: 32}, {Type: BF16, KDim: 8, VDim: 64},
		{Type: Int8, KDim: 8, VDim: 32}, {Type: F32, KDim: 16, VDim: 24}, {Type: BF16, KDim: 40, VDim: 32, Latent: true}} {
		if small() && l.Type != BF16 {
			continue
		}
		r := rng(5)
		blocks := longCache(r, l, (attendBlocks+2*RunBlocks)*BlockSlots)
		const g = 3
		q := normal(r, g*l.KDim)
		lengths := []int{RunSlots - 1, RunSlots, RunSlots + 1, RunSlots + 200, 4*RunSlots + 70}
		if !small() { // more than one call of the kernel for whole blocks takes
			lengths = append(lengths, attendBlocks*BlockSlots+RunSlots+1)
		}
		for _, n := range lengths {
			for m, valid := range [][]uint64{nil, holes(len(blocks))} {
				score := Score{Scale: 0.05, Cap: float32(n % 2)}
				var want []float32
				for h := range g {
					want = append(want, naiveAttend(q[h*l.KDim:][:l.KDim], score, l, blocks, n, valid)...)
				}
				forEach(t, func(t *testing.T) {
					out := make([]float32, g*l.VDim)
					Attend(out, q, g, score, l, blocks, n, valid, &s)
					sameBits(t, fmt.Sprintf("%+v, %d slots, mask %d", l, n, m), out, want)
					if valid == nil {
						return
					}
					clear(out)
					from := &loaded{t: t, l: l, blocks: blocks, valid: valid}
					s.Load = from.loadRun
					Attend(out, q, g, score, l, make([][]byte, len(blocks)), n, valid, &s)
					sameBits(t, fmt.Sprintf("%+v, %d slots, mask %d, loaded", l, n, m), out, want)
					if runs := (n + RunSlots - 1) / RunSlots; from.runs != runs || s.Load != nil {
						t.Errorf("%d of %d runs were loaded", from.runs, runs)
					}
				})
			}
		}
	}
}

// TestOneRunIsOneChain: up to RunSlots slots nothing is folded.
func TestOneRunIsOneChain(t *testing.T) {
	l := KVLayout{Type: F32, KDim: 8, VDim: 32}
	r := rng(6)
	blocks, q := longCache(r, l, RunSlots), normal(r, l.KDim)
	o, _, sum, _ := naiveRun(q, Score{Scale: 0.1}, l, blocks, RunSlots, nil)
	inv := 1 / sum.Sum()
	for i := range o {
		o[i] *= inv
	}
	out := make([]float32, l.VDim)
	Attend(out, q, 1, Score{Scale: 0.1}, l, blocks, RunSlots, nil, new(AttnScratch))
	sameBits(t, "a run", out, o)
}

// TestCausalOfManyRuns: prompts of several runs, with and without windows.
func TestCausalOfManyRuns(t *testing.T) {
	var s AttnScratch
	for _, l := range []KVLayout{{Type: F32, KDim: 8, VDim: 32}, {Type: BF16, KDim: 40, VDim: 32, Latent: true}} {
		r := rng(7)
		for _, c := range []struct{ nq, first, g int }{{70, RunSlots - 31, 2}, {20, 2*RunSlots - 1, 3}} {
			blocks := longCache(r, l, c.first+c.nq)
			q := normal(r, c.nq*c.g*l.KDim)
			for _, window := range []int{0, 50, RunSlots + 100, -RunSlots, -RunSlots + 30} {
				if small() && window == 50 {
					continue
				}
				var want []float32
				for i := range c.nq {
					n := c.first + i + 1
					valid := make([]uint64, (n+63)/64)
					for slot := windowStart(n-1, window); slot < n; slot++ {
						valid[slot/64] |= 1 << (slot % 64)
					}
					for h := range c.g {
						want = append(want, naiveAttend(q[(i*c.g+h)*l.KDim:][:l.KDim], Score{Scale: 0.3}, l, blocks, n, valid)...)
					}
				}
				forEach(t, func(t *testing.T) {
					out := make([]float32, c.nq*c.g*l.VDim)
					AttendCausal(out, c.g*l.VDim, q, c.g*l.KDim, c.nq, c.first, window, c.g, Score{Scale: 0.3}, l, blocks, &s)
					sameBits(t, fmt.Sprintf("%+v %+v window %d", l, c, window), out, want)
				})
			}
		}
	}
}

// TestRunsIsAttend: runs that are computed separately, in any order, give the bits of Attend.
func TestRunsIsAttend(t *testing.T) {
	for _, l := range []KVLayout{{Type: BF16, KDim: 8, VDim: 64}, {Type: Int8, KDim: 72, VDim: 56, Latent: true}} {
		r := rng(8)
		blocks := longCache(r, l, 5*RunSlots)
		const g = 2
		q := normal(r, g*l.KDim)
		var runs Runs
		for _, n := range []int{3, RunSlots, 4*RunSlots + 70} {
			for m, valid := range [][]uint64{nil, holes(len(blocks))} {
				want := make([]float32, g*l.VDim)
				Attend(want, q, g, Score{Scale: 0.05}, l, blocks, n, valid, new(AttnScratch))
				forEach(t, func(t *testing.T) {
					for _, step := range []int{1, 2, 7} {
						count := runs.Begin(q, g, Score{Scale: 0.05}, l, blocks, n, valid, nil)
						if valid != nil && step == 2 {
							count = runs.Begin(q, g, Score{Scale: 0.05}, l, make([][]byte, len(blocks)), n, valid,
								(&loaded{t: t, l: l, blocks: blocks, valid: valid}).loadRun)
						}
						var scratch [2]AttnScratch
						for hi := count; hi > 0; hi -= step {
							runs.Attend(max(0, hi-step), hi, &scratch[hi%2])
						}
						out := make([]float32, g*l.VDim)
						runs.Fold(out)
						sameBits(t, fmt.Sprintf("%+v, %d slots, mask %d, %d runs at a time", l, n, m, step), out, want)
					}
				})
			}
		}
	}
}

// TestRunsOfWholeBlocks: every kernel for whole blocks folds runs by the definition, and continues
// in the middle of a run that a hole has cut.
func TestRunsOfWholeBlocks(t *testing.T) {
	var s AttnScratch
	for _, dt := range []DType{F32, BF16, Int8} {
		for _, columns := range []int{32, 64, 128, 160} {
			if small() && columns != 64 {
				continue
			}
			l := KVLayout{Type: dt, KDim: 8, VDim: columns}
			r := rng(9)
			const n = 3*RunSlots + 3*BlockSlots + 5
			blocks := longCache(r, l, n)
			hole := make([]uint64, len(blocks))
			for i := range hole {
				hole[i] = ^uint64(0)
			}
			hole[5] = 1 << 11
			for g := 1; g <= kernel.AttendRows+1; g++ {
				q := normal(r, g*l.KDim)
				for m, valid := range [][]uint64{nil, hole} {
					allEqual(t, fmt.Sprintf("%+v, %d heads, mask %d", l, g, m), func() []float32 {
						out := make([]float32, g*l.VDim)
						Attend(out, q, g, Score{Scale: 0.05}, l, blocks, n, valid, &s)
						return out
					})
				}
			}
		}
	}
}

// TestFoldOfStrangeNumbers: rows without a slot, before a run or in it, and sums that are NaN.
func TestFoldOfStrangeNumbers(t *testing.T) {
	const rows, vdim = 7, 24
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for seed := range uint64(20) {
		allEqual(t, fmt.Sprint("seed ", seed), func() []float32 {
			r := rng(seed)
			var a, b runState
			twoStates(&a, &b, lines(2*stateFloats(rows, vdim)), rows, vdim)
			var all []float32
			for _, s := range []*runState{&a, &b} {
				s.reset()
				for i := range rows {
					if r.IntN(3) == 0 {
						continue
					}
					copy(s.o[i*vdim:], normal(r, vdim))
					copy(s.sum[i][:], normal(r, len(kernel.Lanes{})))
					s.max[i] = []float32{0.5, -3, 90, -1e30, inf, -inf, nan}[r.IntN(7)]
				}
			}
			a.fold(&b, vdim, new(kernel.FoldArgs))
			for _, s := range []*runState{&a, &b} {
				all = append(all, s.o...)
				for i := range s.sum {
					all = append(all, s.sum[i][:]...)
					if s.sum[i] == s.sum[i] { // the maximum of NaN is not specified
						all = append(all, s.max[i])
					}
				}
			}
			return all
		})
	}
}
