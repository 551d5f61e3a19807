package router

import (
	"math"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// plainRoute is Route as the papers define it: it sorts everything, in float64.
func plainRoute(r model.Router, k int, logits, bias []float32) map[int]float64 {
	n := len(logits)
	score, choice := make([]float64, n), make([]float64, n)
	sum := 0.0
	for i, l := range logits {
		score[i] = 1 / (1 + math.Exp(-float64(l)))
		if r.Score != model.Sigmoid {
			score[i] = math.Exp(float64(l))
			sum += score[i]
		}
	}
	for i := range score {
		if r.Score != model.Sigmoid {
			score[i] /= sum
		}
		choice[i] = score[i]
		if bias != nil {
			choice[i] += float64(bias[i])
		}
	}
	order := func(v []float64) []int {
		at := make([]int, len(v))
		for i := range at {
			at[i] = i
		}
		sort.SliceStable(at, func(a, b int) bool { return v[at[a]] > v[at[b]] })
		return at
	}
	allowed := make([]bool, n)
	groups := max(1, r.Groups)
	of := make([]float64, groups)
	for g := range of {
		members := choice[g*n/groups : (g+1)*n/groups]
		for _, i := range order(members)[:max(r.GroupTop, 1)] {
			of[g] += members[i]
		}
	}
	for _, g := range order(of)[:max(1, r.TopGroups)] {
		for i := g * n / groups; i < (g+1)*n/groups; i++ {
			allowed[i] = true
		}
	}
	out, total := map[int]float64{}, 0.0
	for _, i := range order(choice) {
		if allowed[i] && len(out) < k {
			out[i] = score[i]
			total += score[i]
		}
	}
	for i := range out {
		if r.Normalise || r.Score == model.SoftmaxOfChosen {
			out[i] /= max(total, float64(r.MinSum))
		}
		out[i] *= float64(r.Scale)
	}
	return out
}

func TestRouteMatchesThePapers(t *testing.T) {
	for name, c := range map[string]struct {
		r       model.Router
		experts int
		k       int
	}{
		"mixtral":     {model.Router{Score: model.Softmax, Normalise: true, Scale: 1}, 8, 2},
		"qwen3":       {model.Router{Score: model.Softmax, Normalise: true, Scale: 1}, 128, 8},
		"gpt-oss":     {model.Router{Score: model.SoftmaxOfChosen, Scale: 1}, 128, 4},
		"not divided": {model.Router{Score: model.Softmax, Scale: 1}, 64, 6},
		"v2":          {model.Router{Score: model.Softmax, Scale: 16, Groups: 8, TopGroups: 3, GroupTop: 1}, 160, 6},
		"v3": {model.Router{Score: model.Sigmoid, Normalise: true, Scale: 2.5, Bias: true, Groups: 8, TopGroups: 4, GroupTop: 2},
			256, 8},
		"ernie": {model.Router{Score: model.Softmax, Normalise: true, MinSum: 0.25, Scale: 1, Bias: true}, 64, 6},
		"all":   {model.Router{Score: model.Softmax, Normalise: true, Scale: 1}, 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				draw := func(label string, spread float64) []float32 {
					// Distinct multiples of 1/64: float32 rounds no two of them to a tie.
					at := rapid.Permutation(upTo(4*c.experts)).Draw(t, label)[:c.experts]
					v := make([]float32, len(at))
					for i, x := range at {
						v[i] = float32(spread * float64(x-2*c.experts) / 64)
					}
					return v
				}
				logits := draw("logits", 1)
				var bias []float32
				if c.r.Bias {
					bias = draw("bias", 1.0/16)
				}
				want := plainRoute(c.r, c.k, logits, bias)
				chosen, weights := make([]int32, c.k), make([]float32, c.k)
				Route(&c.r, slices.Clone(logits), bias, make([]float32, c.experts), chosen, weights)
				if !slices.IsSorted(chosen) {
					t.Fatalf("chosen experts %v are not in ascending order", chosen)
				}
				for i, e := range chosen {
					w, ok := want[int(e)]
					if !ok || math.Abs(w-float64(weights[i])) > 1e-5*(1+w) {
						t.Fatalf("expert %d with weight %g, want %v", e, weights[i], want)
					}
				}
			})
		})
	}
}

func upTo(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = i
	}
	return v
}

// With any scores, a token goes to PerToken different experts: ties by number, NaN last.
func TestRouteAlwaysChooses(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		logits []float32
		want   []int32
	}{
		{[]float32{1, 1, 1, 1, 1, 1, 1, 1}, []int32{0, 1, 2}},
		{[]float32{nan, 1, nan, 2, nan, 3, nan, nan}, []int32{1, 3, 5}},
		{[]float32{nan, nan, nan, nan, nan, nan, nan, nan}, []int32{0, 1, 2}},
		{[]float32{-inf, -inf, -inf, -inf, -inf, 0, -inf, -inf}, []int32{0, 1, 5}},
		{[]float32{0, 0, 5, 0, 0, 0, 4, 0}, []int32{0, 2, 6}},
	} {
		for _, r := range []model.Router{
			{Score: model.Sigmoid, Scale: 1},
			{Score: model.Sigmoid, Scale: 1, Groups: 2, TopGroups: 2, GroupTop: 2},
		} {
			chosen := make([]int32, 3)
			Route(&r, slices.Clone(c.logits), nil, make([]float32, 8), chosen, make([]float32, 3))
			if !slices.Equal(chosen, c.want) {
				t.Errorf("%v of %v, %d groups; want %v", chosen, c.logits, r.Groups, c.want)
			}
		}
	}
}
