package socket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

const (
	modelData = "../../internal/engine/model/testdata"
	goldenDir = modelData + "/llama"
)

var raceEnabled bool // set in race_test.go

// rig is a group of sockets in this process over the memory transport.
type rig struct {
	t    *testing.T
	sys  *actor.ActorSystem
	pids []*actor.PID
	step uint64
	seq  uint64
	rows map[uint64]int // number of each sequence's last decode rows

	lost    []uint64       // sequences whose files have failed
	spilled map[uint64]int // blocks in files, by sequence
	score   bool           // request log-probabilities of prompts

	ck    *checkpoint.Checkpoint
	c     rigConfig
	epoch uint32
	wires map[uint32][]collective.Transport

	adapters *lora.Store
	loaded   []lora.ID // of rigConfig.adapters
}

type rigConfig struct {
	weights string // default F32
	dir     string
	swiftKV string // adapter for the model in dir
	sockets int
	mapping topology.Mapping
	shares  []float64
	kv      tensor.DType
	budget  int64
	threads int // default 1
	context int // served; default: the model's
	// nonCausal makes every token attend to the whole text, and window, not 0, to those near it.
	nonCausal bool
	window    int
	fromFiles bool // the model's files set both

	sweep  int           // tokens of a pass; 0: chunks read prompts
	disk   *tier.Scratch // with sweep: for the residual stream
	group  int           // layers that sweeps read at a time; default 1
	passes int           // of decode-only steps, on one socket; default 1
	micro  int           // micro-batches of each step; default 1
	wrap   func(rank int, inner collective.Transport) collective.Transport
	device func(*tensor.Pool) layer.Device // default: layer.Host

	adapters []string // folders of LoRA adapters, which all sockets load
}

func newRig(t *testing.T, c rigConfig) *rig {
	t.Helper()
	ck, err := checkpoint.OpenSwiftKV(c.dir, c.swiftKV)
	if err != nil {
		t.Fatal(err)
	}
	if !c.fromFiles {
		ck.Config.NonCausal = c.nonCausal
	}
	if c.window > 0 {
		ck.Config.Windows = slices.Repeat([]int{c.window}, ck.Config.Layers)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	r := &rig{t: t, ck: ck, c: c, wires: map[uint32][]collective.Transport{}, rows: map[uint64]int{}, spilled: map[uint64]int{},
		sys: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))}
	pool := tensor.NewPool(max(1, c.threads))
	if c.weights == "" {
		r.c.weights = "F32"
	}
	if c.budget == 0 {
		c.budget = 1 << 30
	}
	if len(c.adapters) > 0 {
		r.openAdapters(c.adapters)
	}
	for range c.sockets {
		var device layer.Device
		if c.device != nil {
			device = c.device(pool)
		}
		cfg := Config{Checkpoint: ck, Adapters: r.adapters, AdapterBudget: c.budget, Device: device,
			Pool: pool, KVBudget: c.budget, Scratch: c.disk, Logger: quiet,
			Connect: func(_ context.Context, _ string, epoch uint32, rank int, _ []uint32) (collective.Transport, error) {
				if r.c.wrap != nil {
					return r.c.wrap(rank, r.wires[epoch][rank]), nil
				}
				return r.wires[epoch][rank], nil
			}}
		r.pids = append(r.pids, r.sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &Actor{Config: cfg} })))
	}
	t.Cleanup(func() {
		for _, p := range r.pids {
			r.sys.Root.StopFuture(p).Wait()
		}
		pool.Close()
		ck.Close()
	})
	r.place(1)
	return r
}

// place forms the group of an epoch from the sockets in r.pids. It returns the sequences that each kept
// from the epoch before.
func (r *rig) place(epoch uint32) [][]*proto.Held {
	r.t.Helper()
	n := len(r.pids)
	r.epoch, r.wires[epoch] = epoch, collective.NewMemory(n)
	var members []topology.Member
	for i := range n {
		m := topology.Member{ID: fmt.Sprint("n", i)}
		if r.c.shares != nil {
			m.Share = r.c.shares[i]
		}
		members = append(members, m)
	}
	place, err := topology.Place(epoch, r.c.mapping, shard.ShapeOf(&r.ck.Config), members)
	if err != nil {
		r.t.Fatal(err)
	}
	held := make([][]*proto.Held, n)
	loads := make(chan error, n)
	for i, p := range r.pids {
		r.sys.Root.Send(p, &Load{Request: &proto.LoadRequest{Placement: PlacementMessage(place, make([]uint64, n)), Rank: uint32(i),
			ModelHash: r.ck.Hash(), WeightType: r.c.weights, KvType: r.c.kv.String(), MaxStepTokens: fullStep, Context: uint32(r.c.context)},
			Reply: func(l *proto.LoadReply, err error) { held[i] = l.GetHeld(); loads <- err }})
	}
	r.all(loads)
	for _, p := range r.pids {
		r.sys.Root.Send(p, &Join{Request: &proto.JoinRequest{Epoch: epoch, DeadlineMillis: 120_000, Group: "t", Incarnations: make([]uint32, n)},
			Reply: func(_ *proto.JoinReply, err error) { loads <- err }})
	}
	r.all(loads)
	r.loadAdapters()
	return held
}

func (r *rig) all(c chan error) {
	r.t.Helper()
	for range r.pids {
		select {
		case err := <-c:
			if err != nil {
				r.t.Fatal(err)
			}
		case <-time.After(2 * time.Minute):
			r.t.Fatal("no reply within 2 minutes")
		}
	}
}

// run runs one step on every socket. If a plan does not set the accepted number of a sequence's last
// rows, all are accepted.
func (r *rig) run(req *proto.StepRequest) map[uint64]*proto.Sampled {
	r.t.Helper()
	r.step++
	req.Epoch, req.Step, req.MicroBatches = r.epoch, r.step, uint32(r.c.micro)
	for _, o := range req.Open {
		delete(r.rows, o.Seq)
	}
	for _, c := range req.Chunks {
		if c.Prefill {
			continue
		}
		if c.Accepted == 0 {
			c.Accepted = uint32(r.rows[c.Seq])
		}
		r.rows[c.Seq] = len(c.Tokens) + max(1, int(req.Passes)) - 1
	}
	done := make(chan error, len(r.pids))
	replies := make(chan *proto.StepReply, len(r.pids))
	for _, p := range r.pids {
		r.sys.Root.Send(p, &Step{Request: req, Reply: func(s *proto.StepReply, err error) { replies <- s; done <- err }})
	}
	r.all(done)
	out := map[uint64]*proto.Sampled{}
	for range r.pids {
		reply := <-replies
		r.lost = append(r.lost, reply.GetLost()...)
		for _, f := range reply.GetSpilled() {
			r.spilled[f.Seq] = int(f.Blocks)
		}
		for _, s := range reply.GetSampled() {
			out[s.Seq] = s
		}
	}
	return out
}

// request is one generation; its results are appended to tokens and scores.
type request struct {
	prompt  []int32
	max     int
	params  sampler.Params
	owner   int
	policy  string
	adapter lora.ID
	id      uint64
	at      int
	layer   int // with sweeps: the first that is being read
	tokens  []int32
	scores  []*proto.Sampled
	arrives int // step at which it is opened
}

// generate runs requests together, with prompts divided into chunks, until all are done.
func (r *rig) generate(chunk int, reqs ...*request) {
	r.t.Helper()
	var release []uint64
	of := func(seq uint64) *request {
		return reqs[slices.IndexFunc(reqs, func(q *request) bool { return q.id == seq })]
	}
	for n := 0; ; n++ {
		var s proto.StepRequest
		s.Release, release = release, nil
		left := false
		for _, q := range reqs {
			if len(q.tokens) == q.max {
				continue
			}
			left = true
			if n < q.arrives {
				continue
			}
			if q.id == 0 {
				r.seq++
				q.id = r.seq
				s.Open = append(s.Open, &proto.Open{Seq: q.id, Owner: uint32(q.owner % len(r.pids)), Policy: q.policy,
					Sampling: plan.EncodeSampling(&q.params), PromptTokens: uint32(len(q.prompt)), Adapter: q.adapter.Bytes(),
					PassRows: uint32(r.c.sweep), ResidualInFile: r.c.disk != nil})
			}
			if q.at < len(q.prompt) && r.c.sweep > 0 {
				g := shard.GeometryOf(&r.ck.Config, r.c.kv)
				of := layered.Shape{Group: max(1, r.c.group), Layers: g.Layers, Begins: g.Begins, Later: g.Later}
				s.Sweeps = append(s.Sweeps, q.sweep(chunk/r.c.sweep*r.c.sweep, of))
				continue
			}
			c := &proto.Chunk{Seq: q.id, Start: uint32(q.at)}
			if q.at < len(q.prompt) {
				end := min(q.at+chunk, len(q.prompt))
				c.Prefill, c.Last, c.Sample, c.WantPromptLogprobs = true, end == len(q.prompt), end == len(q.prompt), r.score
				for _, t := range q.prompt[q.at:end] {
					c.Tokens = append(c.Tokens, uint32(t))
				}
				q.at = end
			} else {
				c.Sample = true
				c.Tokens = []uint32{uint32(q.tokens[len(q.tokens)-1])}
				q.at++
			}
			s.Chunks = append(s.Chunks, c)
		}
		if !left {
			if len(release) > 0 {
				r.t.Log("sequences left open")
			}
			return
		}
		if len(s.Chunks)+len(s.Sweeps) == 0 {
			continue
		}
		passes := 1 + n%max(1, r.c.passes)
		if len(s.Sweeps) > 0 {
			passes = 1
		}
		for _, c := range s.Chunks {
			q := of(c.Seq)
			passes = min(passes, q.max-len(q.tokens))
			if c.Prefill {
				passes = 1
			}
		}
		s.Passes = uint32(passes)
		got := r.run(&s)
		for _, w := range s.Sweeps {
			if q := of(w.Seq); w.Sample {
				q.take(r.t, got[w.Seq], 1)
				if len(q.tokens) == q.max {
					release = append(release, q.id)
				}
			}
		}
		for _, c := range s.Chunks {
			if !c.Sample {
				continue
			}
			q, res := of(c.Seq), got[c.Seq]
			q.take(r.t, res, passes)
			q.at += passes - 1
			if len(q.tokens) == q.max {
				release = append(release, q.id)
			}
		}
	}
}

// take appends the results of a step's passes to the request.
func (q *request) take(t *testing.T, got *proto.Sampled, passes int) {
	t.Helper()
	if len(got.GetDrawn()) != passes {
		t.Fatalf("%d tokens for sequence %d in %d passes", len(got.GetDrawn()), q.id, passes)
	}
	for i, d := range got.Drawn {
		if !d.HasToken {
			t.Fatalf("no token for sequence %d", q.id)
		}
		one := got
		if passes > 1 {
			one = &proto.Sampled{Seq: q.id, Drawn: got.Drawn[i : i+1]}
		}
		q.tokens, q.scores = append(q.tokens, int32(d.Token)), append(q.scores, one)
	}
}

// fullStep is the number of rows for which the sockets of a rig have memory.
const fullStep = 512

func greedy(logprobs int) sampler.Params {
	p := sampler.Default()
	p.Temperature, p.Logprobs = 0, logprobs
	return p
}

type goldens struct {
	Items []struct {
		Prompt []int32   `json:"prompt"`
		Logits []float64 `json:"logits"`
		Greedy []int32   `json:"greedy"`
	} `json:"items"`
}

func readGoldens(t *testing.T, dir string) goldens { return readGoldensOf(t, dir, "goldens.json") }

func readGoldensOf(t *testing.T, dir, file string) goldens {
	t.Helper()
	var g goldens
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestGoldens checks that last-position log-probabilities and greedy tokens of random models of each
// architecture equal the float32 reference, with any division over sockets.
func TestGoldens(t *testing.T) {
	for k, arch := range []struct {
		name    string
		sockets []int
	}{
		{"llama", []int{1, 2, 3, 5, 16}},
		{"qwen2", []int{1, 3, 16}},
		{"qwen3", []int{1, 3, 16}},
		{"mistral", []int{1, 3, 16}},
		{"mixtral", []int{1, 3, 16}},
		{"deepseek_v2", []int{1, 3, 16}},
		{"deepseek_v3", []int{1, 3, 16}},
		{"qwen3_moe", []int{1, 3, 16}},
		{"mistral_window", []int{1, 3, 16}},
		{"qwen2_window", []int{1, 3, 16}},
		{"granite", []int{1, 3, 4}},
		{"gpt_oss", []int{1, 3, 4}},
		{"gpt_oss_mxfp4", []int{1, 3, 4}},
		{"olmo2", []int{1, 3, 4}},
		{"olmo3", []int{1, 3, 4}},
		{"exaone4", []int{1, 3, 4}},
		{"seed_oss", []int{1, 3, 4}},
		{"hunyuan_v1_dense", []int{1, 3, 4}},
		{"cohere", []int{1, 3, 4}},
		{"cohere_qk_norm", []int{1, 3, 4}},
		{"cohere2", []int{1, 3, 4}},
		{"gemma", []int{1, 3, 4}},
		{"gemma2", []int{1, 3, 4}},
		{"gemma3", []int{1, 3, 16}},
		{"phi3", []int{1, 3, 16}},
		{"phi3_longrope", []int{1, 3, 4}},
		{"smollm3", []int{1, 3, 4}},
		{"deepseek_v32", []int{1, 3, 4}},
		{"glm_moe_dsa", []int{1, 3, 4}},
		{"llama4", []int{1, 3, 4}},
		{"glm4_moe", []int{1, 3, 4}},
		{"qwen2_moe", []int{1, 3, 4}},
		{"qwen2_moe_window", []int{1, 3}},
		{"glm4_moe_lite", []int{1, 3, 4}},
		{"minimax_m2", []int{1, 3, 4}},
		{"olmoe", []int{1, 3, 4}},
		{"granitemoe", []int{1, 3, 4}},
		{"ernie4_5_moe", []int{1, 3, 4}},
		{"hy_v3", []int{1, 3, 4}},
		{"hunyuan_v1_moe", []int{1, 3, 4}},
		{"mistral3", []int{1, 3, 4}},
		{"ernie4_5", []int{1, 3, 4}},
		{"glm4", []int{1, 3, 4}},
		{"glm", []int{1, 3, 4}},
		{"qwen2_5_vl", []int{1, 3, 4}},
		{"qwen3_vl_moe", []int{1, 3, 4}},
		{"gemma4_31b", []int{1, 3, 4, 16}},
		{"gemma4_e2b", []int{1, 3, 4, 16}},
		{"gemma4_26b", []int{1, 3, 4, 16}},
		{"qwen3_5", []int{1, 2, 3, 4}},
		{"qwen3_5_uneven", []int{1, 2, 3, 4}},
		{"qwen3_5_moe", []int{1, 3, 4}},
		{"qwen3_next", []int{1, 3, 4}},
		{"lfm2", []int{1, 3, 4}},
		{"lfm2_moe", []int{1, 3, 4}},
		{"granite_hybrid", []int{1, 3, 4}},
		{"granite_hybrid_moe", []int{1, 3, 4}},
		{"falcon_h1", []int{1, 3, 4}},
		{"falcon_h1_norm", []int{1, 3, 4}},
		{"nemotron_h", []int{1, 3, 4}},
		{"nemotron_h_moe", []int{1, 3, 4}},
		{"swiftkv", []int{1, 2, 3, 16}},
		{"swiftkv_across", []int{1, 3, 16}},
		{"swiftkv_bias", []int{1, 3, 16}},
	} {
		dir := filepath.Join(modelData, arch.name)
		g := readGoldens(t, dir)
		if raceEnabled { // the arithmetic is the same, and the race detector makes it 20 times slower
			arch.sockets = []int{3}
		}
		for i, n := range arch.sockets {
			for j, m := range topology.Mappings {
				if !testlevel.Long() && k > 0 && (i+j+k)%2 > 0 { // one mapping per number of sockets, both mappings per family
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d", arch.name, m, n), func(t *testing.T) {
					testGoldens(t, g, rigConfig{dir: dir, sockets: n, mapping: m, kv: tensor.F32})
				})
			}
		}
	}
}

// TestGoldensQuantized checks the same for a Llama in every published quantized form, held as float32.
func TestGoldensQuantized(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(modelData, "quantized", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	for i, dir := range dirs {
		for j, n := range []int{1, 3, 4} {
			if raceEnabled && n != 3 {
				continue
			}
			m := topology.Mappings[(i+j)%len(topology.Mappings)]
			t.Run(fmt.Sprintf("%s/%s/%d", filepath.Base(dir), m, n), func(t *testing.T) {
				testGoldens(t, readGoldens(t, dir), rigConfig{dir: dir, sockets: n, mapping: m, kv: tensor.F32})
			})
		}
	}
}

// TestGoldensGGUF checks that the same weights in a GGUF file give the same results.
func TestGoldensGGUF(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "qwen3", "mistral", "mistral_window", "mixtral", "qwen3_moe",
		"granite", "gpt_oss", "olmo2", "exaone4", "seed_oss", "hunyuan_v1_dense", "cohere", "cohere_qk_norm", "cohere2",
		"gemma", "gemma2", "gemma3", "gemma4_31b", "gemma4_e2b", "gemma4_26b", "phi3", "phi3_longrope", "deepseek_v3",
		"smollm3", "qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "lfm2_moe", "granite_hybrid",
		"granite_hybrid_moe", "falcon_h1", "falcon_h1_norm", "nemotron_h", "nemotron_h_moe", "glm4",
		"ernie4_5", "mistral3", "minimax_m2", "olmoe", "granitemoe", "ernie4_5_moe", "hunyuan_v1_moe", "glm4_moe",
	} {
		dir := filepath.Join(modelData, name)
		ck, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		file := modeltest.Convert(ck, func(string) gguf.Type { return gguf.F32 }).Bytes()
		if err := ck.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name+".gguf")
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			testGoldens(t, readGoldens(t, dir), rigConfig{dir: path, sockets: 3, mapping: topology.Gather, kv: tensor.F32})
		})
	}
}

// TestGGUFDeepseekV2 does the same for a model whose goldens a GGUF file cannot express (two
// mscales). It compares with its folder with one mscale: tokens and scores, bit for bit.
func TestGGUFDeepseekV2(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "m.gguf")
	if err := modeltest.SameMScale(filepath.Join(modelData, "deepseek_v2"), dir); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = os.WriteFile(file, modeltest.Convert(ck, func(string) gguf.Type { return gguf.F32 }).Bytes(), 0o600)
	if err := errors.Join(err, ck.Close()); err != nil {
		t.Fatal(err)
	}
	var got [2][]*request
	for i, path := range []string{dir, file} {
		r := newRig(t, rigConfig{dir: path, sockets: 3, mapping: topology.Gather, kv: tensor.F32})
		for j, it := range readGoldens(t, filepath.Join(modelData, "deepseek_v2")).Items {
			got[i] = append(got[i], &request{prompt: it.Prompt, max: 16, owner: j, params: greedy(20)})
		}
		r.generate(64, got[i]...)
	}
	for j, hub := range got[0] {
		own := got[1][j]
		if !slices.Equal(own.tokens, hub.tokens) {
			t.Errorf("prompt %d: got %v, want %v", j, own.tokens, hub.tokens)
		}
		for i, s := range hub.scores {
			for k, top := range s.Drawn[0].Top {
				if o := own.scores[i].Drawn[0].Top[k]; o.Token != top.Token || o.Logprob != top.Logprob {
					t.Fatalf("prompt %d, token %d: %v, want %v", j, i, o, top)
				}
			}
		}
	}
}

func testGoldens(t *testing.T, g goldens, c rigConfig) {
	r := newRig(t, c)
	var reqs []*request
	for i, it := range g.Items {
		reqs = append(reqs, &request{prompt: it.Prompt, max: len(it.Greedy), owner: i, params: greedy(len(it.Logits))})
	}
	r.generate(64, reqs...)
	for i, it := range g.Items {
		if !slices.Equal(reqs[i].tokens, it.Greedy) {
			t.Errorf("prompt %d: got %v, want %v", i, reqs[i].tokens, it.Greedy)
		}
		compareLogits(t, reqs[i].scores[0].Drawn[0].Top, it.Logits, 1e-4)
	}
}

func compareLogits(t *testing.T, got []*proto.TokenLogprob, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d log-probabilities, want %d", len(got), len(want))
	}
	top, sum := slices.Max(want), 0.0
	for _, v := range want {
		sum += math.Exp(v - top)
	}
	worst := 0.0
	for _, p := range got {
		worst = max(worst, math.Abs(float64(p.Logprob)-(want[p.Token]-top-math.Log(sum))))
	}
	if worst > tolerance {
		t.Errorf("log-probabilities differ by up to %g, allowed %g", worst, tolerance)
	}
}
