package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// sessionSockets is the number of sockets of a session: an owner and a replica.
const sessionSockets = 2

// victims are the resources that the sockets of consecutive sessions share.
type victims struct {
	t    testing.TB
	ck   *checkpoint.Checkpoint
	pool *tensor.Pool
	log  *slog.Logger
	disk *tier.Store
}

func newVictims(t testing.TB, dir string) *victims {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := &victims{t: t, ck: ck, pool: tensor.NewPool(1), log: slog.New(panics{slog.DiscardHandler, t})}
	if v.disk, err = tier.Open(filepath.Join(t.TempDir(), "disk"), 1<<20, v.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.disk.Close(); v.pool.Close(); ck.Close() })
	return v
}

// session returns a coordinator's messages to two new sockets. In two epochs, one sequence is read
// in two chunks and another in one; both are decoded, copied, resumed and released. With a short
// deadline, sockets that disagree on a step fail soon.
func (v *victims) session(deadline time.Duration) []pb.Message {
	var members []topology.Member
	for i := range sessionSockets {
		members = append(members, topology.Member{ID: fmt.Sprint("n", i)})
	}
	epoch := func(n uint32) []pb.Message {
		place, err := topology.Place(n, topology.Gather, shard.ShapeOf(&v.ck.Config), members)
		if err != nil {
			v.t.Fatal(err)
		}
		return []pb.Message{
			&proto.LoadRequest{Placement: PlacementMessage(place, make([]uint64, sessionSockets)), ModelHash: v.ck.Hash(),
				WeightType: "bf16", KvType: "bf16", MaxStepTokens: 256, Memory: &proto.Memory{KvBytes: 4 << 20, AdapterParts: 2}},
			&proto.JoinRequest{Epoch: n, DeadlineMillis: uint32(deadline.Milliseconds()), Group: "t", Incarnations: make([]uint32, sessionSockets)},
		}
	}
	tokens := func(n int) []uint32 {
		var out []uint32
		for _, t := range somePrompt(n, 1) {
			out = append(out, uint32(t))
		}
		return out
	}
	drawn := sampler.Default()
	drawn.Seed, drawn.RepetitionPenalty, drawn.TopP, drawn.Logprobs, drawn.MinTokens, drawn.Stop = 7, 1.1, 0.9, 2, 1, []int32{2}
	drawn.LogitBias = []sampler.Bias{{Token: 3, Value: 1}, {Token: 5, Value: -1}}
	drawn.Allowed, drawn.BadWords = []uint64{math.MaxUint64, 1 << 5}, [][]int32{{4}, {7, 6}}
	best := greedy(-1)
	decode := func(seq uint64, at, accepted uint32) *proto.Chunk {
		return &proto.Chunk{Seq: seq, Start: at, Tokens: []uint32{7}, Sample: true, Accepted: accepted}
	}
	s := append(epoch(1),
		&proto.StepRequest{Epoch: 1, Step: 1, Open: []*proto.Open{
			{Seq: 1, Owner: 0, Policy: "snapstream:sink=4,recent=12,topk=16,obs=8", Sampling: plan.EncodeSampling(&drawn), PromptTokens: 80},
			{Seq: 2, Owner: 1, Policy: "full", Sampling: plan.EncodeSampling(&best), PromptTokens: 20},
		}, Chunks: []*proto.Chunk{
			{Seq: 1, Tokens: tokens(70), Prefill: true, WantPromptLogprobs: true, PromptLogprobs: 2,
				Next: 5, Save: []uint64{5}, Keys: make([]byte, 64)},
			{Seq: 2, Tokens: tokens(20), Prefill: true, Last: true, Sample: true},
		}},
		&proto.StepRequest{Epoch: 1, Step: 2, Copy: []*proto.Copy{{Seq: 2, Replica: 0}}, Chunks: []*proto.Chunk{
			decode(2, 20, 0),
			{Seq: 1, Start: 70, Tokens: tokens(10), Prefill: true, Last: true, Sample: true},
		}},
		&proto.StepRequest{Epoch: 1, Step: 3, MicroBatches: 2,
			Chunks: []*proto.Chunk{decode(1, 80, 0), {Seq: 2, Start: 21, Tokens: []uint32{7, 8, 9}, Sample: true, Accepted: 1}}},
		&proto.PrefixRequest{Epoch: 1, Keys: make([]byte, 96), Millis: 1000},
		&proto.PrefixRequest{Epoch: 1, Keys: make([]byte, 96), Blocks: []uint64{6, 7}, Step: 3, Millis: 1000},
		&proto.PrefixRequest{Epoch: 1, Keys: make([]byte, 64), Blocks: []uint64{8}, Step: 3, Millis: 100, Seq: 1},
		&proto.ReleaseRequest{Epoch: 1, Seqs: []uint64{9}, Evict: []uint64{7}},
		&proto.StepRequest{Epoch: 1, Step: 4, MicroBatches: 2, Open: []*proto.Open{{Seq: 3, Owner: 1,
			Policy: "snapkv:topk=9,obs=4", Sampling: plan.EncodeSampling(&best), PromptTokens: 40, PassRows: 16}},
			Sweeps: []*proto.Sweep{{Seq: 3, ToLayer: 1, Tokens: tokens(32)}}},
		&proto.StepRequest{Epoch: 1, Step: 5, Sweeps: []*proto.Sweep{{Seq: 3, ToLayer: 1, Start: 32, Tokens: tokens(8)}}},
		&proto.StepRequest{Epoch: 1, Step: 6,
			Sweeps: []*proto.Sweep{{Seq: 3, FromLayer: 1, ToLayer: uint32(v.ck.Config.Layers), Tokens: tokens(40), Sample: true}}},
		&proto.StepRequest{Epoch: 1, Step: 7, Chunks: []*proto.Chunk{decode(3, 40, 0)}},
	)
	s = append(s, epoch(2)...)
	return append(s,
		&proto.StepRequest{Epoch: 2, Step: 1, Open: []*proto.Open{
			{Seq: 1, Owner: 0, Policy: "snapstream:sink=4,recent=12,topk=16,obs=8", Sampling: plan.EncodeSampling(&drawn),
				PromptTokens: 80, Resume: tokens(81)},
			{Seq: 2, Owner: 1, Replica: 1, Policy: "full", Sampling: plan.EncodeSampling(&best), PromptTokens: 20, Resume: tokens(22)},
		}, Chunks: []*proto.Chunk{decode(1, 81, 0), decode(2, 22, 0)}},
		&proto.StepRequest{Epoch: 2, Step: 2, DropReplica: []uint64{2}, Release: []uint64{1}, Chunks: []*proto.Chunk{decode(2, 23, 1)}},
		&proto.StepRequest{Epoch: 2, Step: 3, Chunks: []*proto.Chunk{decode(2, 24, 1)}},
	)
}

// play sends a session to new sockets, including the messages after a refusal, and retires the sockets.
// It returns the first refusal. The test fails without a reply, if too much memory is allocated, or if
// cache bytes remain.
func (v *victims) play(session []pb.Message) (refused error) {
	v.t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sys := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return v.log }))
	defer sys.Shutdown()
	wires := map[uint32][]collective.Transport{1: collective.NewMemory(sessionSockets), 2: collective.NewMemory(sessionSockets)}
	var pids []*actor.PID
	for range sessionSockets {
		cfg := Config{Checkpoint: v.ck, Pool: v.pool, KVBudget: 4 << 20, Logger: v.log, PrefixDisk: v.disk, Stopped: make(chan struct{}),
			Connect: func(_ context.Context, _ string, epoch uint32, rank int, _ []uint32) (collective.Transport, error) {
				if wires[epoch] == nil {
					return nil, errors.New("no such epoch")
				}
				return wires[epoch][rank], nil
			}}
		pid := sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &Actor{Config: cfg} }))
		defer Stop(sys.Root, pid, cfg.Stopped)
		pids = append(pids, pid)
	}
	replies := make(chan error, sessionSockets)
	all := func(command func(rank int) any) (bad error) {
		for rank, pid := range pids {
			sys.Root.Send(pid, command(rank))
		}
		for range pids {
			select {
			case err := <-replies:
				bad = errors.Join(bad, err)
			case <-time.After(2 * time.Minute):
				v.t.Fatal("no reply within 2 minutes")
			}
		}
		return bad
	}
	for _, m := range session {
		err := all(func(rank int) any {
			switch m := m.(type) {
			case *proto.LoadRequest:
				m = pb.CloneOf(m)
				m.Rank += uint32(rank)
				return &Load{Request: m, Reply: func(_ *proto.LoadReply, err error) { replies <- err }}
			case *proto.JoinRequest:
				return &Join{Request: m, Reply: func(_ *proto.JoinReply, err error) { replies <- err }}
			case *proto.StepRequest:
				return &Step{Request: m, Reply: func(_ *proto.StepReply, err error) { replies <- err }}
			case *proto.PrefixRequest:
				return &Prefix{Request: m, Reply: func(_ *proto.PrefixReply, err error) { replies <- err }}
			case *proto.ReleaseRequest:
				return &Release{Request: m, Reply: func(_ *proto.ReleaseReply, err error) { replies <- err }}
			}
			panic(fmt.Sprintf("a session has no %T", m))
		})
		if refused == nil && err != nil {
			refused = fmt.Errorf("%T: %w", m, err)
		}
	}
	_ = all(func(int) any {
		return &Retire{Request: &proto.RetireRequest{Epoch: math.MaxUint32}, Reply: func(err error) { replies <- err }}
	})
	for end := time.Now().Add(2 * time.Minute); ; {
		held := make([]int64, sessionSockets)
		_ = all(func(rank int) any {
			return &Status{Reply: func(s *proto.SocketStatus) {
				held[rank] = s.KvUsedBytes
				replies <- nil
			}}
		})
		if slices.Max(held) == 0 {
			break
		}
		if time.Now().After(end) {
			v.t.Fatal("cache bytes are left after the end of a session")
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 256<<20 {
		v.t.Errorf("a session took %d MiB", grown>>20)
	}
	return refused
}

// TestSessionIsTaken checks that the session that the tests below damage is valid.
func TestSessionIsTaken(t *testing.T) {
	if err := newVictims(t, goldenDir).play(newVictims(t, goldenDir).session(time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// TestStepsAreRefused checks rules that involve several fields, and plans that would do no harm but are
// invalid.
func TestStepsAreRefused(t *testing.T) {
	v, params := newVictims(t, goldenDir), greedy(0)
	sampling := plan.EncodeSampling(&params)
	for want, change := range map[string]func(first, second *proto.StepRequest){
		"top_p":                 func(s, _ *proto.StepRequest) { s.Open[0].Sampling.TopP = float32(math.NaN()) },
		"bias names token":      func(s, _ *proto.StepRequest) { s.Open[0].Sampling.LogitBias[1].Token = 1 << 20 },
		"ids names token 4095":  func(s, _ *proto.StepRequest) { s.Open[0].Sampling.Allowed = append(make([]uint64, 63), 1<<63) },
		"ids must not be":       func(s, _ *proto.StepRequest) { s.Open[0].Sampling.Allowed = make([]uint64, 1<<16) },
		"words has token":       func(s, _ *proto.StepRequest) { s.Open[0].Sampling.BadWords[1].Tokens[0] = math.MaxUint32 },
		"an empty word":         func(s, _ *proto.StepRequest) { s.Open[0].Sampling.BadWords[0] = nil },
		"prompt tokens were":    func(s, _ *proto.StepRequest) { s.Open[0].SampledBefore = 81 },
		"does not exist yet":    func(s, _ *proto.StepRequest) { s.Open[0].Replica = 2 },
		"prompt logprobs -1":    func(s, _ *proto.StepRequest) { s.Chunks[0].PromptLogprobs = -1 },
		"does not decode it":    func(_, s *proto.StepRequest) { s.Chunks = s.Chunks[1:] },
		"last=true, which is f": func(_, s *proto.StepRequest) { s.Chunks[0].Last = true },
		"names sequence 2 tw":   func(_, s *proto.StepRequest) { s.Chunks = append(s.Chunks, s.Chunks[0]) },
		"has room for 65536": func(s, _ *proto.StepRequest) {
			c := s.Chunks[0]
			for len(c.Tokens) < 200 {
				c.Tokens = append(c.Tokens, 1)
			}
			s.Open[0].PromptTokens, c.PromptLogprobs = 300, 500
		},
		"a prompt of 80 and 4294967295 tokens": func(s, _ *proto.StepRequest) { s.Open[0].TailTokens = math.MaxUint32 },
		"begins with another's cache": func(s, _ *proto.StepRequest) {
			s.Open[0].Fork, s.Open[0].Resume, s.Open[0].PromptTokens = 2, []uint32{1, 2}, 2
		},
		"cannot begin with the cache of sequence 9": func(_, s *proto.StepRequest) {
			s.Open = append(s.Open, &proto.Open{Seq: 8, Fork: 9, PromptTokens: 2, Resume: []uint32{1, 2}, Policy: "squeezed", Sampling: sampling})
		},
		"256 are open": func(s, _ *proto.StepRequest) {
			for i := range 255 {
				s.Open = append(s.Open, &proto.Open{Seq: uint64(10 + i), PromptTokens: 1})
			}
		},
	} {
		session := v.session(100 * time.Millisecond)
		change(session[2].(*proto.StepRequest), session[3].(*proto.StepRequest))
		if err := v.play(session); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestCacheThatNobodyResumed checks that a sequence that is read again, although an earlier epoch
// kept its cache, leaves one cache and not two.
func TestCacheThatNobodyResumed(t *testing.T) {
	v := newVictims(t, goldenDir)
	first := v.session(time.Minute)
	session := first[:15:15]
	for _, m := range first[2:5] {
		s := pb.CloneOf(m.(*proto.StepRequest))
		s.Epoch = 2
		session = append(session, s)
	}
	third := pb.CloneOf(first[0].(*proto.LoadRequest))
	third.Placement.Epoch = 3
	if err := v.play(append(session, third)); err != nil {
		t.Fatal(err)
	}
}

// TestHostileNumbers sets every field of every message in turn to invalid values. Each message must
// get a reply.
func TestHostileNumbers(t *testing.T) {
	for _, arch := range []string{"llama", "deepseek_v3", "gemma3"} {
		t.Run(arch, func(t *testing.T) {
			v := newVictims(t, filepath.Join(modelData, arch))
			session := v.session(100 * time.Millisecond)
			every, refused, n := 43, 0, 0 // FuzzStep (-fuzz) tests the rest
			if arch == "llama" && testlevel.Long() {
				every = 11
			}
			for at := range session {
				total := damage(pb.Clone(session[at]).ProtoReflect(), -1)
				for i := n % every; i < total; i += every {
					m := pb.Clone(session[at])
					damage(m.ProtoReflect(), i)
					damaged := append(append(append([]pb.Message{}, session[:at]...), m), session[at+1:]...)
					if v.play(damaged) != nil {
						refused++
					}
					n++
				}
			}
			t.Logf("%d of %d refused", refused, n)
			if n < 30 || refused < n/3 {
				t.Errorf("%d of %d damaged sessions were refused", refused, n)
			}
		})
	}
}

// damage makes change number `which` in m and returns the number of possible changes. With which < 0 it
// only counts them.
func damage(m protoreflect.Message, which int) int {
	n := 0
	is := func() bool { n++; return n-1 == which }
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList():
			list := m.Mutable(f).List()
			if is() {
				list.Truncate(0)
				return n
			}
			if list.Len() == 0 {
				if f.Message() == nil {
					for _, v := range bad(f, list.NewElement()) {
						if is() {
							list.Append(v)
							return n
						}
					}
				}
				continue
			}
			if is() {
				list.Append(list.Get(0))
				return n
			}
			if is() {
				list.Truncate(list.Len() - 1)
				return n
			}
			if f.Message() == nil {
				last := list.Len() - 1
				for _, v := range bad(f, list.Get(last)) {
					if is() {
						list.Set(last, v)
						return n
					}
				}
				continue
			}
			for j := range list.Len() {
				n += damage(list.Get(j).Message(), which-n)
			}
		case f.Message() != nil:
			if is() {
				m.Clear(f)
				return n
			}
			n += damage(m.Mutable(f).Message(), which-n)
		default:
			for _, v := range bad(f, m.Get(f)) {
				if is() {
					m.Set(f, v)
					return n
				}
			}
		}
	}
	return n
}

// bad returns invalid values for a field of this kind, given its current value.
func bad(f protoreflect.FieldDescriptor, now protoreflect.Value) (out []protoreflect.Value) {
	add := func(v any) { out = append(out, protoreflect.ValueOf(v)) }
	switch f.Kind() {
	case protoreflect.BoolKind:
		add(!now.Bool())
	case protoreflect.Uint32Kind:
		x := uint32(now.Uint())
		for _, v := range []uint32{0, x - 1, x + 1, 1 << 20, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32} {
			add(v)
		}
	case protoreflect.Int32Kind:
		for _, v := range []int32{-2, -1, 0, 1, math.MinInt32, math.MaxInt32} {
			add(v)
		}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		for _, v := range []uint64{0, now.Uint() + 1, math.MaxUint64} {
			add(v)
		}
	case protoreflect.Int64Kind:
		for _, v := range []int64{-1, 0, 1, math.MinInt64, math.MaxInt64} {
			add(v)
		}
	case protoreflect.FloatKind:
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, 1e-45, math.MaxFloat32} {
			add(float32(v))
		}
	case protoreflect.StringKind:
		for _, v := range []string{"", "\xff", "f32", "int8", "q4_0", "reduce", "no.such",
			"snapkv:topk=16777216,obs=16777216,pool=255", "h2o:recent=16777216,topk=16777216,step=16777216",
			"streaming:sink=0,recent=1,positions=cache,half=1", "sage:sink=16777216,recent=16777216,topk=16777216", "tova:size=1",
			"shadowkv:chunk=2,budget=16777216,outliers=65536,local=65536", "shadowkv:chunk=64,budget=2,outliers=0,local=1,int8=1",
			"shadowkv:keys=lowrank,rank=4096", "shadowkv:keys=lowrank,rank=8,chunk=2,budget=2,outliers=65536,local=1",
			"squeezed:clusters=0.005,levels=2,sparsity=0.999,tail=16777216,obs=16777216,segment=16777216",
			"squeezed:clusters=0.5,levels=2,sparsity=0,tail=1,obs=2,segment=64", "snapstream:sink=0,recent=1,topk=0,obs=1"} {
			add(v)
		}
	case protoreflect.BytesKind:
		for _, n := range []int{0, 1, 31, 32, 64, 96, 1 << 16} {
			add(make([]byte, n))
		}
	default:
		panic(fmt.Sprintf("no bad values of a %v", f.Kind()))
	}
	return out
}

// FuzzStep checks that an arbitrary step at any point of a session gets a reply.
func FuzzStep(f *testing.F) {
	v := newVictims(f, goldenDir)
	session := v.session(100 * time.Millisecond)
	for i, m := range session {
		if s, ok := m.(*proto.StepRequest); ok {
			b, err := pb.Marshal(s)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, b []byte) {
		m := new(proto.StepRequest)
		if pb.Unmarshal(b, m) != nil {
			return
		}
		v := *v
		v.t = t
		i := int(at) % (len(session) + 1)
		_ = v.play(append(append(append([]pb.Message{}, session[:i]...), m), session[i:]...))
	})
}
