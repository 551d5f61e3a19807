package sampler

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

var (
	nan  = float32(math.NaN())
	pinf = float32(math.Inf(1))
	ninf = float32(math.Inf(-1))
)

// Known answers of Random123's kat_vectors for philox4x32-10.
func TestPhiloxKnownAnswers(t *testing.T) {
	const f = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestExpLog(t *testing.T) {
	for i := range 200000 {
		x := -float64(draw(1, i)>>11) / (1 << 53) * 700
		if i%2 == 0 {
			x /= 50
		}
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 5e-16*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
		y := 1 + 1e6*math.Exp(x)
		if got, want := log(y), math.Log(y); math.Abs(got-want) > 5e-16*want+1e-18 {
			t.Fatalf("log(%v) = %v, want %v", y, got, want)
		}
	}
	if exp(0) != 1 || log(1) != 0 || exp(math.Inf(-1)) != 0 || exp(math.NaN()) != 0 {
		t.Error("exp(0), log(1), exp(-Inf) or exp(NaN) is wrong")
	}
}

// These bits must never change: stored outputs are replayed against them.
func TestFrozen(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32(draw(99, i)>>40)/(1<<24)*8 - 4
	}
	p := Default()
	p.Seed, p.TopP, p.TopK, p.Temperature = 42, 0.95, 200, 0.8
	var got []int32
	for pos := range 12 {
		got = append(got, Sample(logits, &p, pos, nil, nil).Token)
	}
	if want := []int32{230, 255, 532, 991, 740, 317, 638, 585, 665, 548, 617, 37}; !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
}

func TestEdges(t *testing.T) {
	mod := func(f func(*Params)) *Params { p := Default(); p.Seed = 3; f(&p); return &p }
	plain := mod(func(*Params) {})
	for _, c := range []struct {
		name   string
		logits []float32
		p      *Params
		want   int32
		err    error
	}{
		{"vocabulary of one", []float32{-5}, plain, 0, nil},
		{"empty vocabulary", nil, plain, 0, ErrNoCandidate},
		{"all NaN", []float32{nan, nan}, plain, 0, ErrNoCandidate},
		{"all -Inf", []float32{ninf, ninf}, plain, 0, ErrNoCandidate},
		{"NaN is never chosen", []float32{nan, ninf, -80, nan}, plain, 2, nil},
		{"+Inf wins", []float32{1, pinf, 3}, plain, 1, nil},
		{"top_p 0", []float32{1, 2, 2, 0}, mod(func(p *Params) { p.TopP = 0 }), 1, nil},
		{"top_p tiny", []float32{1, 2, 2, 0}, mod(func(p *Params) { p.TopP = 1e-30 }), 1, nil},
		{"top_k 1", []float32{1, 2, 2, 0}, mod(func(p *Params) { p.TopK = 1 }), 1, nil},
		{"min_p 1", []float32{1, 2, 1.999, 0}, mod(func(p *Params) { p.MinP = 1 }), 1, nil},
		{"greedy tie", []float32{1, 2, 2, 0}, mod(func(p *Params) { p.Temperature = 0 }), 1, nil},
		{"greedy tie of zeros", []float32{float32(math.Copysign(0, -1)), 0}, mod(func(p *Params) { p.Temperature = 0 }), 0, nil},
		{"bias 100 selects", []float32{5, 20, 0}, mod(func(p *Params) { p.LogitBias = []Bias{{2, 100}} }), 2, nil},
		{"bias -100 bans", []float32{5, 60, -50}, mod(func(p *Params) { p.LogitBias = []Bias{{1, -100}} }), 0, nil},
		{"bias outside", []float32{60, 0}, mod(func(p *Params) { p.LogitBias = []Bias{{7, 100}} }), 0, nil},
		{"min_tokens holds back", []float32{60, 0}, mod(func(p *Params) { p.MinTokens, p.Stop = 1, []int32{0} }), 1, nil},
		{"min_tokens bans all", []float32{1}, mod(func(p *Params) { p.MinTokens, p.Stop = 1, []int32{0} }), 0, ErrBanned},
		{"allowed", []float32{9, 1, 2, 3}, mod(func(p *Params) { p.Allowed = []uint64{0b0010} }), 1, nil},
		{"allowed, greedy", []float32{9, 1, 2, 3}, mod(func(p *Params) { p.Temperature, p.Allowed = 0, []uint64{0b0110} }), 2, nil},
		{"a bad word of one token", []float32{60, 0}, mod(func(p *Params) { p.BadWords = [][]int32{{0}} }), 1, nil},
		{"a bad word that was not begun", []float32{60, 0}, mod(func(p *Params) { p.BadWords = [][]int32{{1, 0}} }), 0, nil},
		{"nothing is left", []float32{60, 0}, mod(func(p *Params) { p.Allowed, p.BadWords = []uint64{1}, [][]int32{{0}} }), 0, ErrBanned},
		{"bans over a broken model", []float32{nan, ninf},
			mod(func(p *Params) { p.Allowed, p.BadWords = []uint64{1}, [][]int32{{0}} }), 0, ErrNoCandidate},
		{"bans over half a model", []float32{nan, 3}, mod(func(p *Params) { p.Allowed = []uint64{1} }), 0, ErrBanned},
		{"tiny temperature", []float32{1, 1.0001}, mod(func(p *Params) { p.Temperature = math.SmallestNonzeroFloat32 }), 1, nil},
	} {
		for pos := range 20 {
			if got := Sample(c.logits, c.p, pos, nil, nil); got.Token != c.want || got.Err != c.err {
				t.Errorf("%s: position %d: %+v, want %d %v", c.name, pos, got, c.want, c.err)
				break
			}
		}
	}
}

// With a grammar: only the tokens that both allow.
func TestAllowedTwice(t *testing.T) {
	for _, c := range []struct {
		grammar, request []uint64
		want             int32
		err              error
	}{
		{[]uint64{0b0111}, []uint64{0b1100}, 2, nil},
		{[]uint64{0b0100, 1}, []uint64{0b1101}, 2, nil},
		{[]uint64{0b1000}, []uint64{0b1111, 1}, 3, nil},
		{[]uint64{0b0011}, []uint64{0b1100}, 0, ErrBanned},
		{[]uint64{0, 1}, []uint64{0b1100}, 0, ErrBanned},
	} {
		p := Params{Logprobs: -1, Allowed: c.request}
		if got := SampleAmong([]float32{9, 8, 7, 6}, &p, 0, nil, c.grammar, nil); got.Token != c.want || got.Err != c.err {
			t.Errorf("%b and %b: %+v", c.grammar, c.request, got)
		}
	}
}

func TestPenaltiesAndMinTokens(t *testing.T) {
	var h History
	h.Add([]int32{0, 0, 1})
	h.AddOutput(2)
	h.AddOutput(2)
	p := Params{TopP: 1, RepetitionPenalty: 2, PresencePenalty: 0.5, FrequencyPenalty: 0.25, Logprobs: -1}
	var s Scratch
	logits := []float32{4, -4, 4, 4}
	s.adjust(logits, &p, &h)
	if want := []float32{2, -8, 1, 4}; !slices.Equal(logits, want) {
		t.Errorf("adjusted logits %v, want %v", logits, want)
	}
	p = Default()
	p.Temperature, p.MinTokens, p.Stop = 0, 3, []int32{0}
	if got := Sample([]float32{9, 1}, &p, 0, &h, nil).Token; got != 1 {
		t.Error("a stop token was chosen before min_tokens")
	}
	h.AddOutput(1)
	if got := Sample([]float32{9, 1}, &p, 0, &h, nil).Token; got != 0 {
		t.Error("a stop token was held back after min_tokens")
	}
}

// A bad word is banned where the output ends with its beginning, but not where only the prompt
// does. A token that was undone does not count.
func TestBadWords(t *testing.T) {
	var h History
	h.Add([]int32{1, 2})
	p := Params{Logprobs: -1, BadWords: [][]int32{{1, 2, 0}}}
	next := func(want int32, when string) {
		t.Helper()
		if got := Sample([]float32{9, 1, 0}, &p, 0, &h, nil).Token; got != want {
			t.Errorf("%s: token %d, want %d", when, got, want)
		}
	}
	next(0, "in the prompt")
	h.AddOutput(2)
	next(0, "half of it")
	h.AddOutput(1)
	h.AddOutput(2)
	next(1, "begun")
	h.Undo(2, h.Distinct())
	next(0, "taken back")
	h.AddOutput(2)
	next(1, "begun again")
	h.AddOutput(0)
	next(0, "behind it")
}

func TestGreedyFlag(t *testing.T) {
	for _, c := range []struct {
		want bool
		p    Params
	}{
		{true, Params{Logprobs: -1}},
		{true, Params{Temperature: 1, TopK: 1, TopP: 1, Logprobs: -1}},
		{false, Default()},
		{false, Params{Logprobs: 0}},
		{false, Params{Logprobs: -1, LogitBias: []Bias{{1, 1}}}},
		{false, Params{Logprobs: -1, Allowed: []uint64{1}}},
		{false, Params{Logprobs: -1, BadWords: [][]int32{{1}}}},
		{false, Params{Logprobs: -1, PresencePenalty: 1}},
		{false, Params{Logprobs: -1, RepetitionPenalty: 1.1}},
		{false, Params{Logprobs: -1, MinTokens: 1, Stop: []int32{1}}},
		{true, Params{Logprobs: -1, MinTokens: 1}},
	} {
		if got := c.p.Greedy(); got != c.want {
			t.Errorf("Greedy(%+v) = %v", c.p, got)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Default()
	if err := good.Validate(11); err != nil {
		t.Fatal(err)
	}
	for param, change := range map[string]func(*Params){
		"temperature":        func(p *Params) { p.Temperature = nan },
		"top_p":              func(p *Params) { p.TopP = 1.1 },
		"min_p":              func(p *Params) { p.MinP = -0.1 },
		"repetition_penalty": func(p *Params) { p.RepetitionPenalty = -1 },
		"presence_penalty":   func(p *Params) { p.PresencePenalty = 2.5 },
		"frequency_penalty":  func(p *Params) { p.FrequencyPenalty = -3 },
		"top_k":              func(p *Params) { p.TopK = -2 },
		"logprobs":           func(p *Params) { p.Logprobs = -2 },
		"min_tokens":         func(p *Params) { p.MinTokens = -1 },
		"logit_bias":         func(p *Params) { p.LogitBias = []Bias{{3, 1}, {2, 1}} },
		"allowed_token_ids":  func(p *Params) { p.Allowed = []uint64{1 << 11} },
		"bad_words":          func(p *Params) { p.BadWords = [][]int32{{10}, {10, 11}} },
		"trace":              func(p *Params) { p.Trace = []int32{10, 11} },
	} {
		p := Default()
		change(&p)
		var pe *ParamError
		if err := p.Validate(11); !errors.As(err, &pe) || pe.Param != param || !strings.Contains(err.Error(), param) {
			t.Errorf("%s: error %v", param, err)
		}
	}
	for _, bias := range [][]Bias{{{-1, 0}}, {{1, 0}, {1, 1}}, {{1, 101}}, {{1, nan}}} {
		p := Default()
		p.LogitBias = bias
		if p.Validate(11) == nil {
			t.Errorf("bias %v was accepted", bias)
		}
	}
	scored := Params{Trace: []int32{10}, Logprobs: 0}
	if replayed := (Params{Trace: []int32{10}, Logprobs: -1}); replayed.Validate(11) != nil || scored.Validate(11) == nil {
		t.Error("a trace is replayed, and has no log-probabilities")
	}
	for _, none := range []Params{{Allowed: []uint64{}}, {Allowed: []uint64{0}}, {BadWords: [][]int32{{}}}} {
		if none.Logprobs = -1; none.Validate(11) == nil {
			t.Errorf("%+v was accepted", none)
		}
	}
	good.LogitBias, good.Allowed, good.BadWords = []Bias{{10, 1}}, []uint64{1 << 10}, [][]int32{{10}}
	if good.Validate(10) == nil || good.Validate(11) != nil {
		t.Error("Validate misjudges the last token")
	}
}

// The sampled frequencies fit softmax(logit/T) restricted by top_k and top_p.
func TestChiSquare(t *testing.T) {
	logits := []float32{2, 1.5, 1, 0.5, 0, 0, -0.5, -1, -3, nan}
	for _, c := range []struct {
		temp, topP float32
		topK       int
		kept       int
		critical   float64 // chi-square at p = 0.0001 for kept-1 degrees of freedom
	}{
		{1, 1, 0, 9, 31.83},
		{0.5, 1, 0, 9, 31.83},
		{1.7, 1, 6, 6, 25.74},
		{1, 0.8, 0, 4, 21.11},
	} {
		p := Params{Temperature: c.temp, TopP: c.topP, TopK: c.topK, RepetitionPenalty: 1, Logprobs: -1, Seed: 12345}
		const n = 100000
		counts := make([]float64, len(logits))
		var s Scratch
		for i := range n {
			counts[Sample(logits, &p, i, nil, &s).Token]++
		}
		total, chi := 0.0, 0.0
		for _, l := range logits[:c.kept] {
			total += math.Exp(float64(l) / float64(c.temp))
		}
		for i := range logits {
			if i >= c.kept {
				if counts[i] != 0 {
					t.Errorf("%+v: token %d was drawn %v times", c, i, counts[i])
				}
				continue
			}
			want := n * math.Exp(float64(logits[i])/float64(c.temp)) / total
			chi += (counts[i] - want) * (counts[i] - want) / want
		}
		if chi > c.critical {
			t.Errorf("%+v: chi-square %.1f, critical %.1f", c, chi, c.critical)
		}
	}
}

func TestSampleDoesNotAllocate(t *testing.T) {
	logits := make([]float32, 32000)
	for i := range logits {
		logits[i] = float32(draw(5, i)>>40) / (1 << 21)
	}
	p := Default()
	p.TopP, p.MinP, p.RepetitionPenalty, p.Logprobs = 0.9, 0.01, 1.1, 0
	var h History
	h.Add([]int32{1, 2, 3})
	h.AddOutput(4)
	var s Scratch
	for _, k := range []int{0, 50} {
		p.TopK = k
		Sample(logits, &p, 0, &h, &s)
		if n := testing.AllocsPerRun(5, func() { Sample(logits, &p, 1, &h, &s) }); n != 0 {
			t.Errorf("top_k %d: %v allocations", k, n)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	logits := make([]float32, 128256)
	for i := range logits {
		logits[i] = float32(draw(5, i)>>40) / (1 << 20) // 0..16
	}
	logits[77] = 22
	for _, c := range []struct {
		name string
		p    Params
	}{
		{"greedy", Params{Logprobs: -1}},
		{"plain", Params{Temperature: 1, TopP: 1, Logprobs: -1}},
		{"top_p", Params{Temperature: 0.7, TopP: 0.9, Logprobs: -1}},
		{"top_k", Params{Temperature: 0.7, TopP: 0.9, TopK: 40, Logprobs: -1}},
		{"logprobs", Params{Logprobs: 20}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var s Scratch
			for i := range b.N {
				Sample(logits, &c.p, i, nil, &s)
			}
		})
	}
}

// A draw equal to the sum of a bin belongs to the next one.
func TestPasses(t *testing.T) {
	s := Scratch{sums: [unweighed + 1]uint64{1: 3, 4: 2}}
	for target, want := range []struct {
		bin   int
		above uint64
	}{{1, 0}, {1, 0}, {1, 0}, {4, 3}, {4, 3}} {
		if bin, above := s.passes(uint64(target)); bin != want.bin || above != want.above {
			t.Errorf("%d is passed in bin %d, above it %d; want %+v", target, bin, above, want)
		}
	}
}

// A socket does not validate the coordinator's parameters again: NaN counts as off.
func TestSampleWithoutNumbers(t *testing.T) {
	nan := float32(math.NaN())
	for seed := range uint64(20) {
		off := Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: seed, Logprobs: -1}
		p, want := off, Sample([]float32{1, 3, 2, 0}, &off, 7, nil, new(Scratch))
		p.TopP, p.MinP, p.RepetitionPenalty = nan, nan, nan
		if got := Sample([]float32{1, 3, 2, 0}, &p, 7, nil, new(Scratch)); got.Token != want.Token {
			t.Errorf("seed %d: token %d, want %d", seed, got.Token, want.Token)
		}
	}
}

// Only allowed tokens are drawn, for all other settings. Logprobs stay the model's.
func TestSampleAmong(t *testing.T) {
	logits := make([]float32, 130)
	for i := range logits {
		logits[i] = float32(draw(8, i)>>40) / (1 << 21)
	}
	logits[3] = 50
	before := slices.Clone(logits)
	allowed := []uint64{1<<7 | 1<<9, 0, 1 << 1} // 7, 9, 129
	var s Scratch
	for i, p := range []Params{
		{Logprobs: -1}, {Temperature: 1, TopP: 1, Logprobs: -1}, {Temperature: 1, TopP: 0.2, TopK: 2, Logprobs: 2},
		{Temperature: 1, TopP: 1, MinTokens: 5, Stop: []int32{7, 9, 129}, Logprobs: -1}, // MinTokens is ignored here
	} {
		for pos := range 50 {
			r := SampleAmong(logits, &p, pos, nil, allowed, &s)
			if r.Err != nil || !slices.Contains([]int32{7, 9, 129}, r.Token) {
				t.Fatalf("%d: %+v", i, r)
			}
			if want := Logprobs(logits, r.Token, 2, nil); p.Logprobs == 2 && (r.Logprob != want.Logprob || r.Top[0].Token != 3) {
				t.Fatalf("%d: logprobs %+v, want %+v", i, r, want)
			}
		}
	}
	if !slices.Equal(logits, before) {
		t.Error("logits were changed")
	}
	if r := SampleAmong(logits, &Params{Logprobs: -1}, 0, nil, []uint64{}, &s); r.Err != ErrBanned {
		t.Errorf("nothing is allowed: %+v", r)
	}
}
