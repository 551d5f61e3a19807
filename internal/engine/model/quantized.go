package model

import (
	"errors"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/quantform"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// readQuantized reads the form in which the weights are quantized. Package quantform refuses unknown
// forms.
func readQuantized(f *Fields, c *Config) {
	if f.Has("compression_config") && !f.Has("quantization_config") { // the older name
		f.Raw["quantization_config"] = f.Raw["compression_config"]
	}
	q := f.Object("quantization_config")
	if q == nil {
		return
	}
	arch, _ := Lookup(c.Architecture)
	s, err := quantform.Read(f.Raw["quantization_config"])
	var e *quantform.Error
	switch {
	case errors.As(err, &e) && e.Field == "":
		f.Fail("quantization_config", KindOf(e), "%s", e.Detail)
	case errors.As(err, &e):
		q.Fail(e.Field, KindOf(e), "%s", e.Detail)
		f.Take(q)
	case s.Experts && !arch.Alternating:
		q.Refuse("quant_method", "%q is supported for the experts of gpt-oss; use the original checkpoint and quantize on load", s.Method)
		f.Take(q)
	default:
		c.Hold(s)
	}
}

// Hold sets the form, and the type in memory for it.
func (c *Config) Hold(s *quantform.Settings) {
	dt, err := tensor.ParseDType(s.Held)
	if err != nil {
		panic(err) // a name that quantform defines
	}
	c.Quantized, c.DType = s, dt
}

// HeldAs returns the type in which a matrix is held if the model is held as dt. A type that keeps the codes
// of the file is for matrices that have such codes: head, attention or routers may not.
func (c *Config) HeldAs(name string, dt tensor.DType) tensor.DType {
	s := c.Quantized
	if s == nil || !s.IsNative(dt) || s.Experts && strings.Contains(name, ".experts.") || !s.Experts && strings.Contains(name, ".layers.") {
		return dt
	}
	return tensor.Q8_0
}

// DraftAs returns the type of weights for the draft model of a model with type dt. A draft without 4-bit codes
// uses Q8_0 instead of a type that needs such codes.
func (c *Config) DraftAs(dt tensor.DType) tensor.DType {
	if keeps := dt == tensor.Int4 || dt == tensor.MXFP4; keeps && (c.Quantized == nil || !c.Quantized.IsNative(dt)) {
		return tensor.Q8_0
	}
	return dt
}

// KindOf returns the sentinel of this package for an error of quantform.
func KindOf(e *quantform.Error) error {
	for theirs, ours := range map[error]error{quantform.ErrMissing: ErrMissing, quantform.ErrMismatch: ErrMismatch,
		quantform.ErrOutOfRange: ErrOutOfRange, quantform.ErrFormat: ErrFormat} {
		if errors.Is(e, theirs) {
			return ours
		}
	}
	return ErrUnsupported
}
