// Package router chooses the experts of a token from the scores of a layer's router.
package router

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// Route chooses the experts of one token. It fills chosen (PerToken), in ascending order, and their
// weights. scores (experts) are the router's outputs, which Route replaces by their scores. choice
// (experts) is scratch. bias (experts) is nil if the router has none.
//
// Route is a pure function of one row, computed in a fixed order, so every socket chooses the same
// experts. Among equal scores the lowest expert wins. NaN never wins.
func Route(r *model.Router, scores, bias, choice []float32, chosen []int32, weights []float32) {
	switch r.Score {
	case model.Sigmoid:
		sigmoid(scores)
	case model.SoftmaxOfChosen, model.SigmoidOfChosen: // below
	default:
		softmax(scores)
	}
	copy(choice, scores)
	if bias != nil {
		tensor.Add(choice, bias)
	}
	if r.Groups > 0 {
		limitGroups(r, choice)
	}
	for i := range chosen {
		e := best(choice, chosen[:i])
		chosen[i] = int32(e)
	}
	slices.Sort(chosen)
	sum := float32(0)
	for i, e := range chosen {
		weights[i] = scores[e]
		sum += scores[e]
	}
	switch r.Score {
	case model.SoftmaxOfChosen:
		softmax(weights)
	case model.SigmoidOfChosen:
		sigmoid(weights)
	}
	switch {
	case r.MinSum > 0:
		sum = max(sum, r.MinSum)
	case r.SumPlus > 0:
		sum += r.SumPlus
	default:
		sum += 1e-20 // as in the reference implementation: all scores may be zero
	}
	for i, w := range weights {
		if r.Normalise {
			w /= sum
		}
		weights[i] = w * r.Scale
	}
}

func sigmoid(s []float32) {
	for i, x := range s {
		s[i] = 1 / (1 + f32.Exp(-x))
	}
}

// softmax works in place and sums in ascending order.
func softmax(s []float32) {
	top, sum := s[best(s, nil)], float32(0)
	for i, v := range s {
		s[i] = f32.Exp(v - top)
		sum += s[i]
	}
	for i := range s {
		s[i] /= sum
	}
}

// best returns the index of the largest score that is not taken.
func best(s []float32, taken []int32) int {
	at := -1
	for i, v := range s {
		better := at < 0 || v > s[at] || v == v && s[at] != s[at]
		if better && !slices.Contains(taken, int32(i)) {
			at = i
		}
	}
	return at
}

// limitGroups restricts the choice to the experts of the best groups.
func limitGroups(r *model.Router, choice []float32) {
	size := len(choice) / r.Groups
	var all [model.MaxGroups]float32
	scores := all[:r.Groups]
	for g := range scores {
		members := choice[g*size : (g+1)*size]
		var taken [model.MaxGroupTop]int32
		for i := range r.GroupTop {
			e := best(members, taken[:i])
			taken[i] = int32(e)
			scores[g] += members[e]
		}
	}
	var kept [model.MaxGroups]int32
	for i := range r.TopGroups {
		kept[i] = int32(best(scores, kept[:i]))
	}
	for g := range r.Groups {
		if slices.Contains(kept[:r.TopGroups], int32(g)) {
			continue
		}
		for i := g * size; i < (g+1)*size; i++ {
			choice[i] = float32(math.Inf(-1))
		}
	}
}
