package probe

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
)

// A comparison runs kernels on fixed numbers and compares the results with package tensor, to the
// bit.
type comparison struct {
	name    string
	kernels []string // that it launches
	run     func(k *card, r *rand.Rand)
}

// comparisons cover every kernel but read_all, which computes nothing.
var comparisons = slices.Concat(functionComparisons, rowComparisons, productComparisons, cacheComparisons,
	attentionComparisons, turnedComparisons, massComparisons, expertComparisons, rankComparisons)

// small returns a comparison repeated with the kernels for cards with less shared memory.
func small(c comparison, kernels ...string) comparison {
	return comparison{c.name + ", less shared memory", kernels, func(k *card, r *rand.Rand) {
		all := k.kernels
		defer func() { k.kernels = all }()
		k.kernels = all.Small()
		c.run(k, r)
	}}
}

// compare runs a comparison. It returns an error if bits differ, or if the driver reports one.
func (k *card) compare(c comparison) error {
	k.err = nil
	c.run(k, rand.New(rand.NewPCG(1, 2)))
	err := k.err
	k.free()
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return k.err
}

// broken reports whether an error is the driver's, after which the context is of no use.
func broken(err error) bool {
	var e *cuda.Error
	return errors.As(err, &e)
}

// compareAll runs the comparisons that launch a kernel, or all for "". It stops at an error of the
// driver.
func (k *card) compareAll(kernel string) error {
	var all []error
	for _, c := range comparisons {
		if kernel != "" && !slices.Contains(c.kernels, kernel) {
			continue
		}
		err := k.compare(c)
		all = append(all, err)
		if broken(err) {
			break
		}
	}
	return errors.Join(all...)
}
