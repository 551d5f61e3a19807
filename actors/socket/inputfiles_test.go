package socket

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// filedInput is a sequence whose input is read in chunks after its prompt, and then decodes some tokens.
type filedInput struct {
	*rig
	policy        string
	prompt, input []int32
	chunk         int // tokens of the input in a step
	move          int // tokens of the input after which the rows go to a file; -1: they stay
	take          int // tokens of the input after which another sequence takes the cache; -1: none does
}

// read returns the tokens that the sequence samples, with their scores.
func (x *filedInput) read(blocks int) (drawn []*proto.Drawn) {
	x.t.Helper()
	const other, output = 9, 8
	params, seq, text := greedy(5), uint64(1), append(append([]int32(nil), x.prompt...), x.input...)
	owner := uint32(len(x.pids) - 1)
	tokens := func(from, to int) (list []uint32) {
		for _, t := range text[from:to] {
			list = append(list, uint32(t))
		}
		return list
	}
	unscored := greedy(-1)
	x.run(&proto.StepRequest{
		Open: []*proto.Open{
			{Seq: seq, Owner: owner, Policy: x.policy, Sampling: plan.EncodeSampling(&params), PromptTokens: uint32(len(x.prompt)),
				TailTokens: uint32(len(x.input))},
			{Seq: other, Sampling: plan.EncodeSampling(&unscored), PromptTokens: 3}},
		Chunks: []*proto.Chunk{{Seq: seq, Tokens: tokens(0, len(x.prompt)), Prefill: true, Last: true},
			{Seq: other, Tokens: []uint32{5, 6, 7}, Prefill: true, Last: true}}})
	at, spare := len(x.prompt), 3
	for end := len(text); len(drawn) < output; {
		var s proto.StepRequest
		if at-len(x.prompt) == x.take {
			s.Open = []*proto.Open{{Seq: 2, Owner: owner, Policy: x.policy, Sampling: plan.EncodeSampling(&params),
				PromptTokens: uint32(len(x.prompt)), TailTokens: uint32(len(x.input)), Fork: seq, Take: true, Resume: tokens(0, at)}}
			seq, x.take = 2, -1
		}
		n := 1
		if at < end {
			n = min(x.chunk, end-at)
			for _, border := range []int{x.move, x.take} {
				if border > 0 && at < len(x.prompt)+border {
					n = min(n, len(x.prompt)+border-at)
				}
			}
		}
		c := &proto.Chunk{Seq: seq, Start: uint32(at), Tokens: tokens(at, at+n), Sample: at+n >= end}
		if c.Sample {
			c.Known = uint32(n - 1)
		}
		s.Chunks, at = append(s.Chunks, c), at+n
		if at-len(x.prompt) == x.move {
			s.Spill = append(s.Spill, &proto.Spill{Seq: seq, Blocks: uint32(blocks)})
		}
		got := x.run(&s)
		for _, d := range got[seq].GetDrawn() {
			drawn, text = append(drawn, d), append(text, int32(d.Token))
		}
		for began := time.Now(); at-len(x.prompt) == x.move && x.spilled[seq] == 0; spare++ { // the file is written while steps run
			if time.Since(began) > time.Minute {
				x.t.Fatal("the rows did not go to a file within a minute")
			}
			x.run(&proto.StepRequest{Chunks: []*proto.Chunk{{Seq: other, Start: uint32(spare), Tokens: []uint32{7}}}})
		}
	}
	return drawn
}

// TestInputInFiles: an input is read in chunks while rows of its sequence are in a file. The tokens after it have
// the bits of rows in memory and of one token a step: also when the rows go to the file in the middle of the input,
// and when another sequence, the next turn of a session, takes the cache with its file.
func TestInputInFiles(t *testing.T) {
	for i, c := range []struct{ model, policy string }{
		{"llama", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12"},
		{"llama", "squeezed:clusters=0.05,levels=2,sparsity=0.8,tail=8,obs=12,segment=300"},
		{"llama", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12,ring=40"},
		{"llama", "quest:page=16,budget=96"},
		{"llama", "quest:page=16,budget=96,ring=40"},
		{"llama", "shadowkv:chunk=8,budget=32,outliers=2,local=1,ring=30"},
		{"llama", "shadowkv:chunk=8,budget=32,outliers=2,local=1"},
		{"llama", "snapstream:sink=4,recent=60,topk=40,obs=8,pool=7,recall=64"},
		{"deepseek_v2", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12"},
		{"gemma2", "squeezed:clusters=0.05,sparsity=0.95,tail=8,obs=12"},
	} {
		t.Run(c.model+" "+c.policy, func(t *testing.T) {
			if i > 0 && raceEnabled {
				testlevel.NeedLong(t)
			}
			p, err := kvpolicy.Parse(c.policy)
			if err != nil {
				t.Fatal(err)
			}
			const prompt, input = 400, 83
			read := func(sockets int, x filedInput) []*proto.Drawn {
				t.Helper()
				disk, err := tier.OpenScratch(filepath.Join(t.TempDir(), "kv"), 1<<26, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(disk.Close)
				x.rig = newRig(t, rigConfig{dir: filepath.Join(modelData, c.model), sockets: sockets, mapping: topology.Gather,
					kv: tensor.BF16, disk: disk})
				x.policy, x.prompt, x.input = c.policy, somePrompt(prompt, 1), somePrompt(input, 2)
				blocks := kvcache.Spillable(shard.GeometryOf(&x.ck.Config, tensor.BF16), prompt, prompt, p)
				if blocks == 0 {
					t.Fatal("no rows can go to a file")
				}
				got, moves := x.read(blocks), x.move >= 0
				if f := disk.Stats(); (f.Read > 0) != moves || (f.Wrote > 0) != moves || f.Failed > 0 || len(x.lost) > 0 {
					t.Errorf("%+v: the files have %+v", x, f)
				}
				return got
			}
			want := read(1, filedInput{chunk: 1, move: -1, take: -1})
			for _, k := range []struct {
				sockets int
				filedInput
			}{
				{1, filedInput{chunk: 64, move: -1, take: -1}},
				{1, filedInput{chunk: 8, move: 8, take: -1}},
				{3, filedInput{chunk: 31, move: 17, take: -1}},
				{1, filedInput{chunk: 8, move: 20, take: 50}},
				{1, filedInput{chunk: 13, move: 61, take: 30}},
			} {
				got := read(k.sockets, k.filedInput)
				for i := range want {
					if len(got) != len(want) || !pb.Equal(got[i], want[i]) {
						t.Errorf("%d sockets, chunks of %d tokens, in a file after %d, taken after %d: token %d is %v, want %v", k.sockets,
							k.chunk, k.move, k.take, i, got[i], want[i])
						break
					}
				}
			}
		})
	}
}
