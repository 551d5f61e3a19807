package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// network runs groups without goroutines: every step (a message delivered, a
// piece of a worker's work, a tick) is chosen by the test's generator.
type network struct {
	r      *rand.Rand
	groups []*Group
	wire   []packet
	fault  func(*network, packet) []packet // nil: none
	failed []int                           // OnFail calls per rank
}

type packet struct {
	src, dst int
	msg      []byte
}

type networkEnd struct {
	net  *network
	rank int
}

func (e networkEnd) Broadcast(msg []byte) error {
	for r := range e.net.groups {
		if r != e.rank {
			e.Send(r, msg)
		}
	}
	return nil
}

func (e networkEnd) Send(dst int, msg []byte) error {
	p := packet{e.rank, dst, append([]byte(nil), msg...)}
	if e.net.fault == nil {
		e.net.wire = append(e.net.wire, p)
	} else {
		e.net.wire = append(e.net.wire, e.net.fault(e.net, p)...)
	}
	return nil
}
func (networkEnd) Receive(func(int, []byte)) {}
func (networkEnd) Close() error              { return nil }

func newNetwork(t fataler, n int, r *rand.Rand, cfg Config) *network {
	net := &network{r: r, groups: make([]*Group, n), failed: make([]int, n)}
	for k := range n {
		c := cfg
		c.Rank, c.Size, c.Epoch = k, n, 7
		c.OnFail = func(error) { net.failed[k]++ }
		g, err := newGroup(c, networkEnd{net, k})
		if err != nil {
			t.Fatalf("%v", err)
		}
		g.armed = true // ticks come from the test
		net.groups[k] = g
	}
	return net
}

type fataler interface{ Fatalf(string, ...any) }

// step does one random thing; false: nothing is left to do.
func (net *network) step() bool {
	type choice func()
	var all []choice
	for _, g := range net.groups {
		if !g.st.jobs.empty() || !g.st.replays.empty() || !g.st.combines.empty() {
			all = append(all, func() { g.mu.Lock(); g.workUnlocking() })
		}
	}
	if len(net.wire) > 0 {
		all = append(all, func() {
			i := net.r.IntN(len(net.wire)) // any order
			p := net.wire[i]
			net.wire[i] = net.wire[len(net.wire)-1]
			net.wire = net.wire[:len(net.wire)-1]
			net.groups[p.dst].receive(p.src, p.msg)
		})
	}
	if len(all) == 0 {
		return false
	}
	all[net.r.IntN(len(all))]()
	return true
}

// expire makes every deadline pass.
func (net *network) expire() {
	for _, g := range net.groups {
		g.mu.Lock()
		g.st.tick(1 << 62)
		g.unlock()
	}
}

type outcome struct {
	calls int
	err   error
}

// play starts every program on every rank, micro-batches and ranks interleaved at
// random but in order within (rank, micro-batch), and steps until nothing moves.
func (net *network) play(programs []program) [][]outcome {
	out := make([][]outcome, len(net.groups))
	next := make([]map[uint8]int, len(net.groups)) // per micro-batch: index into programs
	batches := map[uint8][]int{}
	for i, p := range programs {
		batches[p.id.MicroBatch()] = append(batches[p.id.MicroBatch()], i)
	}
	left := 0
	for k := range net.groups {
		out[k] = make([]outcome, len(programs))
		next[k] = map[uint8]int{}
		left += len(programs)
	}
	for left > 0 || len(net.wire) > 0 {
		if left > 0 && net.r.IntN(3) == 0 || !net.step() {
			if left == 0 {
				break
			}
			k := net.r.IntN(len(net.groups))
			for batch, list := range batches {
				if at := next[k][batch]; at < len(list) {
					i := list[at]
					next[k][batch]++
					left--
					programs[i].start(net.groups[k], k, func(err error) {
						out[k][i].calls++
						out[k][i].err = err
					})
					break
				}
			}
		}
	}
	for net.step() {
	}
	return out
}

func randomPrograms(r *rand.Rand, n, count, most int) []program {
	var ps []program
	seq := [3]uint64{}
	for range count {
		batch := r.IntN(3)
		seq[batch] += uint64(1 + r.IntN(2)) // numbers may skip, in the same way on all ranks
		ps = append(ps, randomProgram(Op(uint8(batch), seq[batch]), r, n, most))
	}
	return ps
}

func TestTwins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 16).Draw(t, "ranks")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		cfg := Config{
			OneShotBytes: rapid.SampledFrom([]int{1, 400, 1 << 20}).Draw(t, "oneShot"),
			ChunkBytes:   rapid.SampledFrom([]int{4, 64, 1000, 1 << 20}).Draw(t, "chunk"),
		}
		net := newNetwork(t, n, r, cfg)
		dup := rapid.Bool().Draw(t, "duplicates")
		net.fault = func(net *network, p packet) []packet {
			if dup && net.r.IntN(4) == 0 {
				return []packet{p, {p.src, p.dst, append([]byte(nil), p.msg...)}}
			}
			return []packet{p}
		}
		most := rapid.SampledFrom([]int{0, 1, 5, 200}).Draw(t, "most")
		ps := randomPrograms(r, n, rapid.IntRange(1, 8).Draw(t, "ops"), most)
		out := net.play(ps)
		for k := range out {
			for i, o := range out[k] {
				if o.calls != 1 || o.err != nil {
					t.Fatalf("rank %d, %s (op %v): done called %d times, error %v", k, ps[i].what, ps[i].id, o.calls, o.err)
				}
				if err := ps[i].check(k); err != nil {
					t.Fatalf("%s (op %v): %v", ps[i].what, ps[i].id, err)
				}
			}
			if s := net.groups[k].Stats(); s.InFlight != 0 || s.StashedBytes != 0 || s.StashedOps != 0 || s.Ops != uint64(len(ps)) {
				t.Fatalf("rank %d is left with %+v", k, s)
			}
		}
	})
}

// TestFaults: with loss and flipped bits every operation still ends exactly once, with a correct
// result or with the one error that failed the group.
func TestFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "ranks")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		net := newNetwork(t, n, r, Config{OneShotBytes: 500, ChunkBytes: rapid.SampledFrom([]int{16, 4096}).Draw(t, "chunk")})
		lossy := rapid.IntRange(0, 20).Draw(t, "loss")
		net.fault = func(net *network, p packet) []packet {
			switch x := net.r.IntN(200); {
			case x < lossy:
				return nil
			case x < 2*lossy: // a flip anywhere
				p.msg[net.r.IntN(len(p.msg))] ^= 1 << net.r.IntN(8)
			case x < 3*lossy: // a corrupted copy before the intact message
				bad := packet{p.src, p.dst, append([]byte(nil), p.msg...)}
				bad.msg[net.r.IntN(HeaderBytes)] ^= 1 << net.r.IntN(8)
				return []packet{bad, p}
			}
			return []packet{p}
		}
		ps := randomPrograms(r, n, rapid.IntRange(1, 8).Draw(t, "ops"), 100)
		out := net.play(ps)
		net.expire()
		for k := range out {
			g := net.groups[k]
			for i, o := range out[k] {
				if o.calls != 1 {
					t.Fatalf("rank %d, %s: done called %d times", k, ps[i].what, o.calls)
				}
				if o.err == nil {
					if err := ps[i].check(k); err != nil {
						t.Fatalf("%s: %v", ps[i].what, err)
					}
				} else if o.err != g.Err() {
					t.Fatalf("rank %d: op error %v, group error %v", k, o.err, g.Err())
				} else if !errors.Is(o.err, ErrPeerTimeout) || len(blamed(o.err)) == 0 {
					t.Fatalf("rank %d: %v", k, o.err)
				}
			}
			want := 0
			if g.Err() != nil {
				want = 1
			}
			if net.failed[k] != want {
				t.Fatalf("rank %d: OnFail called %d times, error %v", k, net.failed[k], g.Err())
			}
			late := outcome{}
			g.Barrier(Op(9, 1), func(err error) { late.calls++; late.err = err })
			if g.Err() != nil && (late.calls != 1 || late.err != g.Err()) {
				t.Fatalf("an operation after the failure: %d calls, %v", late.calls, late.err)
			}
		}
	})
}

// TestForgedHeaders: with flipped bits in headers of valid checksums nothing panics, no operation is
// lost and memory stays bounded.
func TestForgedHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(t, "ranks")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		net := newNetwork(t, n, r, Config{ChunkBytes: 64, OneShotBytes: 300, WindowOps: 4, WindowBytes: 4096})
		net.fault = func(net *network, p packet) []packet {
			if net.r.IntN(8) == 0 {
				p.msg[net.r.IntN(HeaderBytes)] ^= 1 << net.r.IntN(8)
				end := len(p.msg) - trailerBytes
				binary.LittleEndian.PutUint32(p.msg[end:], crc32c.Of(p.msg[:end]))
			}
			return []packet{p}
		}
		ps := randomPrograms(r, n, 6, 60)
		out := net.play(ps)
		net.expire()
		for k := range out {
			for i, o := range out[k] {
				if o.calls != 1 {
					t.Fatalf("rank %d, %s: done called %d times", k, ps[i].what, o.calls)
				}
			}
			if s := net.groups[k].Stats(); s.StashedBytesPeak > 4096 || s.InFlight != 0 {
				t.Fatalf("rank %d: %+v", k, s)
			}
		}
	})
}

func ExampleOpError() {
	err := error(&OpError{Op: Op(1, 42), Kind: KindAllGather, Ranks: []int{2, 3}, Err: ErrPeerTimeout,
		Detail: "did not deliver before the deadline"})
	fmt.Println(err)
	e, _ := errors.AsType[*OpError](err)
	fmt.Println(errors.Is(err, ErrPeerTimeout), e.Ranks)
	// Output:
	// collective: peer timed out: op 1.42 (all-gather), rank 2 3: did not deliver before the deadline
	// true [2 3]
}
