package models

import (
	"github.com/alecthomas/kong"
)

// Quant is the value of --quant: a type of weights, auto, or "" for the type of the
// checkpoint.
type Quant string

// QuantAuto selects the largest type that fits in memory.
const QuantAuto = Quant("auto")

// Decode reads the value after the flag. It sets auto if another flag or nothing follows.
func (q *Quant) Decode(ctx *kong.DecodeContext) error {
	if !ctx.Scan.Peek().IsValue() {
		*q = QuantAuto
		return nil
	}
	var text string
	if err := ctx.Scan.PopValueInto("type", &text); err != nil {
		return err
	}
	*q = Quant(text)
	return nil
}
