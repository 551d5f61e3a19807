// Package launch describes the operations of a model's step as calls of kernels: arguments, shapes
// and grids. An operation is a struct; its Calls are data, so tests check them without a card.
// Matrices are row-major float32 and rows follow one another, except where a stride is given.
package launch

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
)

// An Operation is one computation of a step.
type Operation interface {
	// Calls returns the kernels of the operation in their order, or an error if no kernel has its
	// shape. An operation without rows has no calls.
	Calls() ([]Call, error)
}

// Call is one launch of a kernel.
type Call struct {
	Kernel string
	Grid   cuda.Grid
	Args   []any
}

// Set holds the loaded kernels of a card.
type Set struct {
	module *cuda.Module
	byName map[string]*cuda.Kernel
	lacks  map[string]bool // kernels for which the card has too little shared memory
}

// dynamicBytes maps kernels to their bytes of dynamic shared memory. A multiprocessor must have room for
// residentBlocks thread blocks.
var dynamicBytes = map[string]int{
	"q8_product_tiled_shared": treeBytes, "q4_product_tiled_shared": treeBytes,
	"attend_prompt_f32_64": promptBytes, "attend_prompt_bf16_64": promptBytes, "attend_prompt_int8_64": promptBytes,
}

const residentBlocks = 2

// smaller is an operation with other kernels for cards with less shared memory.
type smaller interface{ small() Operation }

// Load compiles the kernels for the card of a context.
func Load(c *cuda.Context) (*Set, error) {
	m, err := c.Load(kernels.PTX())
	if err != nil {
		return nil, err
	}
	s := &Set{module: m, byName: map[string]*cuda.Kernel{}, lacks: map[string]bool{}}
	for _, name := range kernels.Names {
		if s.byName[name], err = m.Kernel(name); err != nil {
			return nil, err
		}
	}
	for name, bytes := range dynamicBytes {
		fits, err := s.byName[name].AllowShared(bytes, residentBlocks)
		if err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
		s.lacks[name] = !fits
	}
	return s, nil
}

// Small returns a set that uses the kernels for cards with too little shared memory for any of dynamicBytes. Comparisons
// use it. Close only s: both have the same module.
func (s *Set) Small() *Set {
	small := &Set{module: s.module, byName: s.byName, lacks: map[string]bool{}}
	for name := range dynamicBytes {
		small.lacks[name] = true
	}
	return small
}

// Close unloads the kernels. None may be in flight.
func (s *Set) Close() error { return s.module.Close() }

// Calls returns the kernels of an operation on this card.
func (s *Set) Calls(o Operation) ([]Call, error) {
	calls, err := o.Calls()
	if x, ok := o.(smaller); ok && slices.ContainsFunc(calls, func(c Call) bool { return s.lacks[c.Kernel] }) {
		return x.small().Calls()
	}
	return calls, err
}

// Run puts the kernels of an operation into a stream.
func (s *Set) Run(stream *cuda.Stream, o Operation) error {
	calls, err := s.Calls(o)
	if err != nil {
		return err
	}
	for _, c := range calls {
		k := s.byName[c.Kernel]
		if k == nil {
			return fmt.Errorf("launch: there is no kernel %s", c.Kernel)
		}
		if err := k.Launch(stream, c.Grid, c.Args...); err != nil {
			return err
		}
	}
	return nil
}

// Kernel returns a kernel by its name, or nil.
func (s *Set) Kernel(name string) *cuda.Kernel { return s.byName[name] }

// MaxGridY is the maximum number of thread blocks in the second dimension of a grid, and so the maximum number of rows of
// most operations (CUDA C++ Programming Guide, technical specifications per compute capability).
const MaxGridY = 65535

// null is the address of an absent argument.
const null = cuda.Pointer(0)

// block is the number of columns that share a scale.
const block = 32

func ceil(n, by int) int { return (n + by - 1) / by }

// Rounded holds activations, rounded for products with quantized weights: bytes (rows, columns), and a
// float32 scale for each 32 columns (rows, columns/32).
type Rounded struct{ Bytes, Scales cuda.Pointer }

// RoundedBytes returns the memory of the two parts of Rounded.
func RoundedBytes(rows, cols int) (bytes, scales int64) {
	return int64(rows) * int64(cols), int64(rows) * int64(cols) / block * 4
}

func wholeBlocks(what string, cols int) error {
	if cols <= 0 || cols%block != 0 {
		return fmt.Errorf("launch: %s of %d columns, must be a multiple of %d", what, cols, block)
	}
	return nil
}
