package socket

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// text is a prompt that ends with a vector.
type text struct {
	method pooling.Method
	prompt []int32
	vector []float32
}

func texts(methods ...pooling.Method) []*text {
	var list []*text
	for i, n := range []int{1, 7, 64, 65, 150} {
		t := &text{method: methods[i%len(methods)]}
		for j := range n {
			t.prompt = append(t.prompt, int32((j*j*31+i*17+j)%500+5))
		}
		list = append(list, t)
	}
	return list
}

// pool reads texts together, in chunks of at most chunk tokens, next to a sequence that decodes
// (unless the model is not causal). Texts begin one step after another.
func (r *rig) pool(chunk int, list ...*text) {
	r.t.Helper()
	params := greedy(-1)
	open := func(owner int, method pooling.Method, tokens int) *proto.Open {
		r.seq++
		return &proto.Open{Seq: r.seq, Owner: uint32(owner % len(r.pids)), Policy: "full",
			Sampling: plan.EncodeSampling(&params), PromptTokens: uint32(tokens), Pool: uint32(method)}
	}
	chat, next, at := uint64(0), uint32(9), 0
	seqs, read := make([]uint64, len(list)), make([]int, len(list))
	for n, left := 0, len(list); left > 0; n++ {
		s := &proto.StepRequest{}
		if !r.ck.Config.NonCausal && !r.ck.Config.Headless {
			if chat == 0 {
				o := open(1, pooling.None, 1)
				chat, s.Open = o.Seq, append(s.Open, o)
			}
			s.Chunks = append(s.Chunks,
				&proto.Chunk{Seq: chat, Start: uint32(at), Tokens: []uint32{next}, Prefill: at == 0, Last: at == 0, Sample: true})
			at++
		}
		for i, q := range list {
			if n < i || q.vector != nil {
				continue
			}
			if seqs[i] == 0 {
				o := open(i, q.method, len(q.prompt))
				seqs[i], s.Open = o.Seq, append(s.Open, o)
			}
			end := min(read[i]+chunk, len(q.prompt))
			c := &proto.Chunk{Seq: seqs[i], Start: uint32(read[i]), Prefill: true}
			for _, t := range q.prompt[read[i]:end] {
				c.Tokens = append(c.Tokens, uint32(t))
			}
			s.Chunks, read[i] = append(s.Chunks, c), end
		}
		got := r.run(s)
		if chat != 0 {
			next = got[chat].Drawn[0].Token
		}
		for i, q := range list {
			if v := got[seqs[i]].GetPooled(); len(v) > 0 {
				if read[i] != len(q.prompt) {
					r.t.Errorf("a vector after %d of %d tokens", read[i], len(q.prompt))
				}
				q.vector, left = v, left-1
			}
		}
		if n > 1000 {
			r.t.Fatal("texts have no vectors")
		}
	}
	r.run(&proto.StepRequest{Release: slices.Concat(seqs, []uint64{chat}), Open: []*proto.Open{open(0, pooling.Last, 1)},
		Chunks: []*proto.Chunk{{Seq: r.seq, Tokens: []uint32{1}, Prefill: true}}})
}

func vectorsOf(list []*text) string {
	var b strings.Builder
	for _, q := range list {
		for _, v := range q.vector {
			fmt.Fprintf(&b, "%08x", math.Float32bits(v))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestPooledSameBits: a vector depends on its text only, not on the number of sockets, the mapping,
// the chunks or the batch.
func TestPooledSameBits(t *testing.T) {
	for _, name := range []string{"qwen3", "gemma3", "deepseek_v2", "qwen3_5", "smollm3", "swiftkv"} {
		for _, whole := range []bool{false, true} {
			if whole && name != "qwen3" && name != "gemma3" {
				continue
			}
			t.Run(fmt.Sprintf("%s,whole=%v", name, whole), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(modelData, name)
				methods := []pooling.Method{pooling.Last, pooling.Mean, pooling.CLS}
				rigOf := func(c rigConfig) *rig {
					c.dir, c.kv, c.nonCausal = dir, tensor.BF16, whole
					return newRig(t, c)
				}
				want := texts(methods...)
				alone := rigOf(rigConfig{sockets: 1, mapping: topology.Gather})
				for _, q := range want {
					alone.pool(512, q)
				}
				for _, c := range []struct {
					sockets, chunk int
					mapping        topology.Mapping
				}{{1, 31, topology.Reduce}, {3, 64, topology.Gather}, {4, 40, topology.Reduce}} {
					if whole {
						c.chunk = 512
					}
					got := texts(methods...)
					rigOf(rigConfig{sockets: c.sockets, mapping: c.mapping}).pool(c.chunk, got...)
					if vectorsOf(got) != vectorsOf(want) {
						t.Errorf("%d sockets, %s, chunks of %d: other vectors than those of one socket and one text at a time", c.sockets, c.mapping, c.chunk)
					}
				}
			})
		}
	}
}

// TestPooledIsTheInputOfTheHead: the vector of the last token, times the head, is the logits of
// transformers.
func TestPooledIsTheInputOfTheHead(t *testing.T) {
	for _, name := range []string{"llama", "qwen3"} {
		dir := filepath.Join(modelData, name)
		g := readGoldens(t, dir)
		r := newRig(t, rigConfig{dir: dir, sockets: 1, mapping: topology.Gather, kv: tensor.F32})
		head, err := r.ck.Tensor(r.ck.Config.HeadName())
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range g.Items {
			q := &text{method: pooling.Last, prompt: item.Prompt}
			r.pool(50, q)
			row := make([]float32, len(q.vector))
			for token, want := range item.Logits {
				head.Row(row, token, 0, len(row))
				got := 0.0
				for i, v := range q.vector {
					got += float64(v) * float64(row[i])
				}
				if math.Abs(got-want) > 1e-3 {
					t.Fatalf("%s, %d tokens: logit %d is %v, want %v", name, len(item.Prompt), token, got, want)
				}
			}
		}
	}
}

// TestPooledPlansAreRefused: plans that a socket cannot carry out for a text that ends with a vector.
func TestPooledPlansAreRefused(t *testing.T) {
	params := greedy(-1)
	open := func(m pooling.Method) *proto.Open {
		return &proto.Open{Seq: 7, Policy: "full", Sampling: plan.EncodeSampling(&params), PromptTokens: 2, Pool: uint32(m)}
	}
	run := func() *proto.Chunk { return &proto.Chunk{Seq: 7, Tokens: []uint32{1, 2}, Prefill: true} }
	for name, c := range map[string]struct {
		whole  bool
		open   *proto.Open
		run    *proto.Chunk
		change func(*proto.Open, *proto.Chunk)
		want   string
	}{
		"hand-over": {false, open(pooling.Last), run(), func(_ *proto.Open, c *proto.Chunk) { c.Last = true },
			"cannot sample, score or hand over"},
		"sample": {false, open(pooling.Last), run(), func(_ *proto.Open, c *proto.Chunk) { c.Sample = true },
			"cannot sample, score or hand over"},
		"tail": {false, open(pooling.Mean), run(), func(o *proto.Open, _ *proto.Chunk) { o.TailTokens = 3 }, "cannot have decode rows"},
		"tokens": {true, open(pooling.None),
			run(), func(_ *proto.Open, c *proto.Chunk) { c.Last, c.Sample = true, true }, "only makes vectors"},
		"part": {true, open(pooling.Mean), run(), func(_ *proto.Open, c *proto.Chunk) { c.Tokens = c.Tokens[:1] },
			"one run must read them all"},
		"method": {false, open(9), run(), func(*proto.Open, *proto.Chunk) {}, "pooling method 9 is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, nonCausal: c.whole})
			c.change(c.open, c.run)
			errs := make(chan error, 1)
			r.sys.Root.Send(r.pids[0],
				&Step{Request: &proto.StepRequest{Epoch: 1, Step: 1, Open: []*proto.Open{c.open}, Chunks: []*proto.Chunk{c.run}},
					Reply: func(_ *proto.StepReply, err error) { errs <- err }})
			if err := <-errs; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestNonCausalSeesBothSides: with attention on both sides the first token's state depends on the
// last token, and with a window only on those near it.
func TestNonCausalSeesBothSides(t *testing.T) {
	vector := func(whole bool, window int, last int32) []float32 {
		r := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, nonCausal: whole, window: window})
		q := &text{method: pooling.CLS, prompt: []int32{5, 6, 7, 8, 9, 10, 11, 12, 13, last}}
		r.pool(512, q)
		return q.vector
	}
	same := func(whole bool, window int) bool {
		return slices.Equal(vector(whole, window, 20), vector(whole, window, 21))
	}
	const near, far = 3, 4 // three layers reach window-1 tokens further each, and the last token is 9 away
	if !same(false, 0) || same(true, 0) || !same(true, near) || same(true, far) {
		t.Errorf("causal %v, not causal %v, window %d %v, window %d %v", same(false, 0), same(true, 0),
			near, same(true, near), far, same(true, far))
	}
}
