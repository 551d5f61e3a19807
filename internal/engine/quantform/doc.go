// Package quantform reads the forms in which checkpoints are published quantized. Each form is one file
// and one row of the table in forms.go: the names by which its tensors are recognised, the tensors of
// one matrix, and the formula of its elements.
//
// Elements are the products of the format's definition in float32, each rounded once. A form's rounding
// of activations (static scales of inputs) is not carried out.
package quantform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
)

// Kinds of failure, for errors.Is.
var (
	ErrUnsupported = errors.New("quantform: not supported")
	ErrMissing     = errors.New("quantform: tensor missing")
	ErrMismatch    = errors.New("quantform: tensors contradict each other")
	ErrOutOfRange  = errors.New("quantform: value out of range")
	ErrFormat      = errors.New("quantform: malformed")
)

// Error is an error at a tensor or at a field of the settings.
type Error struct {
	Tensor, Field string
	Kind          error
	Detail        string
}

func (e *Error) Error() string { return "quantform: " + e.Tensor + e.Field + ": " + e.Detail }

func (e *Error) Is(target error) bool { return target == e.Kind }

// Part is a stored tensor: row-major, little endian.
type Part struct {
	Name   string
	Stored string // the safetensors type
	Shape  []int
	Data   []byte
}

// flat reports whether the part has n elements in any shape, and is of one of the types.
func (p *Part) is(n int, types ...string) bool {
	have := 1
	for _, d := range p.Shape {
		have *= d
	}
	return have == n && p.typed(types...)
}

// shaped reports whether the part has that shape and one of the types.
func (p *Part) shaped(rows, cols int, types ...string) bool {
	return len(p.Shape) == 2 && p.Shape[0] == rows && p.Shape[1] == cols && p.typed(types...)
}

func (p *Part) typed(types ...string) bool {
	for _, t := range types {
		if p.Stored == t {
			return true
		}
	}
	return false
}

func (p *Part) String() string { return fmt.Sprintf("%s of shape %v", p.Stored, p.Shape) }

// floats are the types of scales.
var floats = []string{"F32", "BF16", "F16"}

// width returns the size of an element.
func width(stored string) int {
	switch stored {
	case "I64", "U64":
		return 8
	case "F32", "I32", "U32":
		return 4
	case "BF16", "F16", "I16", "U16":
		return 2
	}
	return 1
}

// float is element i of a part of floats or of powers of two.
func (p *Part) float(i int) float32 {
	switch p.Stored {
	case "F32":
		return math.Float32frombits(binary.LittleEndian.Uint32(p.Data[4*i:]))
	case "BF16":
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(p.Data[2*i:])) << 16)
	case "F16":
		return dequant.F16(binary.LittleEndian.Uint16(p.Data[2*i:]))
	case "F8_E4M3":
		return dequant.E4M3[p.Data[i]]
	}
	return 2 * dequant.FP4Scale(p.Data[i]) // F8_E8M0 or U8
}

// notFinite counts the elements of a part of scales that are NaN or infinite, and reports whether all
// are zero.
func (p *Part) notFinite() (n int64, zero bool) {
	zero = true
	for i := range len(p.Data) / width(p.Stored) {
		v := p.float(i)
		if v-v != 0 {
			n++
		}
		zero = zero && v == 0
	}
	return n, zero
}

// word is element i of a part of 32-bit integers.
func (p *Part) word(i int) uint32 { return binary.LittleEndian.Uint32(p.Data[4*i:]) }
