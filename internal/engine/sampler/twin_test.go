package sampler

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// twin is the reference implementation of Sample: copy, full sort, loops. It shares only the random
// bits and the fixed-point weights.
func twin(logits []float32, p *Params, position int, prompt, output []int32) Result {
	type cand struct {
		id    int32
		logit float32
	}
	x := slices.Clone(logits)
	for i := range x {
		id := int32(i)
		for _, b := range p.LogitBias {
			if b.Token == id {
				x[i] += b.Value
			}
		}
		count := 0
		for _, t := range output {
			if t == id {
				count++
			}
		}
		if (count > 0 || slices.Contains(prompt, id)) && p.RepetitionPenalty != 1 {
			if x[i] > 0 {
				x[i] /= p.RepetitionPenalty
			} else {
				x[i] *= p.RepetitionPenalty
			}
		}
		if count > 0 {
			f := p.FrequencyPenalty * float32(count)
			x[i] = float32(x[i] - f)
			x[i] = float32(x[i] - p.PresencePenalty)
		}
		for _, w := range p.BadWords {
			if n := len(w) - 1; w[n] == id && len(output) >= n && slices.Equal(output[len(output)-n:], w[:n]) {
				x[i] = float32(math.Inf(-1))
			}
		}
		if p.Allowed != nil && (i/64 >= len(p.Allowed) || p.Allowed[i/64]>>(i%64)&1 == 0) {
			x[i] = float32(math.Inf(-1))
		}
		if len(output) < p.MinTokens && slices.Contains(p.Stop, id) {
			x[i] = float32(math.Inf(-1))
		}
	}
	var all []cand
	for i, l := range x {
		if l == l && !math.IsInf(float64(l), -1) {
			all = append(all, cand{int32(i), l})
		}
	}
	if len(all) == 0 {
		for _, l := range logits {
			if l == l && !math.IsInf(float64(l), -1) {
				return Result{Err: ErrBanned}
			}
		}
		return Result{Err: ErrNoCandidate}
	}
	slices.SortStableFunc(all, func(a, b cand) int {
		switch {
		case a.logit > b.logit:
			return -1
		case a.logit < b.logit:
			return 1
		}
		return 0
	})
	best := all[0]
	if p.Temperature == 0 {
		all = all[:1]
	}
	if p.TopK > 0 && p.TopK < len(all) {
		all = all[:p.TopK]
	}
	weights := make([]*big.Int, len(all))
	for i, c := range all {
		e := 1.0
		if c.logit != best.logit {
			e = exp((float64(c.logit) - float64(best.logit)) / float64(p.Temperature))
		}
		if e < float64(p.MinP) {
			e = 0
		}
		weights[i] = big.NewInt(int64(float64(e * (1 << 44))))
	}
	sum := func() *big.Int {
		t := new(big.Int)
		for _, w := range weights {
			t.Add(t, w)
		}
		return t
	}
	total := sum()
	need := big.NewInt(int64(math.Ceil(float64(p.TopP) * float64(total.Int64()))))
	cum := new(big.Int)
	for i, w := range weights {
		if i > 0 && p.TopP < 1 && cum.Cmp(need) >= 0 {
			weights[i] = new(big.Int)
			continue
		}
		cum = new(big.Int).Add(cum, w)
	}
	target := new(big.Int).SetUint64(draw(p.Seed, position))
	target.Mul(target, sum()).Rsh(target, 64)
	cum = new(big.Int)
	for i, w := range weights {
		cum.Add(cum, w)
		if cum.Cmp(target) > 0 {
			return Result{Token: all[i].id}
		}
	}
	panic("twin: the draw passed the total")
}

func twinLogprobs(logits []float32, token int32, k int) (float32, []TokenLogprob) {
	top := math.Inf(-1)
	for _, l := range logits {
		if l == l {
			top = max(top, float64(l))
		}
	}
	sum := 0.0
	for _, l := range logits {
		switch {
		case float64(l) == top:
			sum++
		case l == l:
			sum += math.Exp(float64(l) - top)
		}
	}
	lp := func(l float32) float32 {
		switch {
		case float64(l) == top:
			return float32(-math.Log(sum))
		case l == l:
			return float32(float64(l) - top - math.Log(sum))
		}
		return float32(math.Inf(-1))
	}
	var all []TokenLogprob
	for i, l := range logits {
		if l == l && !math.IsInf(float64(l), -1) {
			all = append(all, TokenLogprob{int32(i), lp(l)})
		}
	}
	slices.SortStableFunc(all, func(a, b TokenLogprob) int {
		x, y := logits[a.Token], logits[b.Token]
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return lp(logits[token]), all[:min(k, len(all))]
}

func drawLogits(t *rapid.T) []float32 {
	n := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(1, 3000)).Draw(t, "vocab")
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	seed := rapid.Uint64().Draw(t, "logits")
	x := make([]float32, n)
	for i := range x {
		u := draw(seed, i)
		switch f := float32(u>>40) / (1 << 24); kind {
		case 0: // spread
			x[i] = f*40 - 20
		case 1: // many ties
			x[i] = float32(u % 4)
		case 2: // flat
			x[i] = f * 0.01
		case 3: // specials
			x[i] = []float32{0, 1, -1, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(-1)),
				float32(math.Inf(1)), math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32}[u%10]
		}
	}
	return x
}

func drawParams(t *rapid.T, n int) (*Params, []int32, []int32) {
	token := rapid.Int32Range(0, int32(n)) // n itself is out of range
	p := Default()
	p.Seed = rapid.Uint64().Draw(t, "seed")
	p.Temperature = rapid.SampledFrom([]float32{0, 1e-30, 0.01, 0.7, 1, 1.5, 100}).Draw(t, "temperature")
	p.TopP = rapid.SampledFrom([]float32{0, 1e-9, 0.1, 0.5, 0.9, 0.999999, 1}).Draw(t, "top_p")
	p.MinP = rapid.SampledFrom([]float32{0, 1e-6, 0.1, 0.9, 1}).Draw(t, "min_p")
	p.TopK = rapid.SampledFrom([]int{-1, 0, 1, 2, 5, 40, 1000, 5000}).Draw(t, "top_k")
	var prompt, output []int32
	if rapid.Bool().Draw(t, "edits") {
		p.RepetitionPenalty = rapid.SampledFrom([]float32{0.5, 1, 1.1, 2}).Draw(t, "repetition")
		p.PresencePenalty = rapid.SampledFrom([]float32{-2, 0, 0.3, 2}).Draw(t, "presence")
		p.FrequencyPenalty = rapid.SampledFrom([]float32{-2, 0, 0.3, 2}).Draw(t, "frequency")
		p.MinTokens = rapid.IntRange(0, 4).Draw(t, "min_tokens")
		p.Stop = rapid.SliceOfN(token, 0, 3).Draw(t, "stop")
		prompt = rapid.SliceOfN(token, 0, 8).Draw(t, "prompt")
		output = rapid.SliceOfN(token, 0, 8).Draw(t, "output")
		ids := rapid.SliceOfNDistinct(token, 0, 4, rapid.ID[int32]).Draw(t, "bias")
		slices.Sort(ids)
		for _, id := range ids {
			p.LogitBias = append(p.LogitBias, Bias{id, rapid.SampledFrom([]float32{-100, -1, 0.5, 100}).Draw(t, "value")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "bad words") { // after the newest output, or not
			suffix := output[len(output)-rapid.IntRange(0, len(output)).Draw(t, "suffix"):]
			p.BadWords = append(p.BadWords, append(slices.Clone(suffix), token.Draw(t, "bad")))
		}
		if rapid.Bool().Draw(t, "allow") {
			p.Allowed = append(rapid.SliceOfN(rapid.Uint64(), 0, n/64+1).Draw(t, "allowed"), 1<<min(n, 3))
		}
	}
	return &p, prompt, output
}

func TestSampleAgainstTwin(t *testing.T) {
	var s Scratch // shared on purpose: the state left by a call must not matter
	rapid.Check(t, func(t *rapid.T) {
		logits := drawLogits(t)
		p, prompt, output := drawParams(t, len(logits))
		if err := p.Validate(1 << 20); err != nil {
			t.Fatal(err)
		}
		var h History
		h.Add(prompt)
		for _, o := range output {
			h.AddOutput(o)
		}
		position := rapid.IntRange(0, 1<<40).Draw(t, "position")
		before := slices.Clone(logits)
		want := twin(logits, p, position, prompt, output)
		got := Sample(logits, p, position, &h, &s)
		if got.Token != want.Token || got.Err != want.Err {
			t.Fatalf("Sample = %+v, twin = %+v", got, want)
		}
		if again := Sample(logits, p, position, &h, nil); again.Token != got.Token {
			t.Fatalf("a second call chose %d, the first %d", again.Token, got.Token)
		}
		for i := range logits {
			if math.Float32bits(before[i]) != math.Float32bits(logits[i]) {
				t.Fatalf("logit %d was not restored", i)
			}
		}
		if p.Greedy() && got.Err == nil && got.Token != argMax(logits) {
			t.Fatalf("Greedy, but %d is not argmax", got.Token)
		}
	})
}

func TestLogprobsAgainstTwin(t *testing.T) {
	var s Scratch
	rapid.Check(t, func(t *rapid.T) {
		logits := drawLogits(t)
		p := Default()
		p.Logprobs = rapid.SampledFrom([]int{0, 1, 5, 20, 700, 5000}).Draw(t, "k")
		p.LogitBias = []Bias{{0, 3}} // raw logprobs ignore it
		got := Sample(logits, &p, 7, nil, &s)
		if got.Err != nil {
			return
		}
		lp, top := twinLogprobs(logits, got.Token, p.Logprobs)
		if !near(got.Logprob, lp) {
			t.Fatalf("logprob %v, want %v", got.Logprob, lp)
		}
		if len(got.Top) != len(top) {
			t.Fatalf("%d top tokens, want %d", len(got.Top), len(top))
		}
		for i := range top {
			if got.Top[i].Token != top[i].Token || !near(got.Top[i].Logprob, top[i].Logprob) {
				t.Fatalf("top[%d] = %v, want %v", i, got.Top[i], top[i])
			}
		}
	})
}

func near(a, b float32) bool {
	return a == b || math.Abs(float64(a)-float64(b)) <= 1e-6+1e-6*math.Abs(float64(b))
}
