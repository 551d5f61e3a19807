package cli

import "github.com/alecthomas/kong"

// quantType is the value of --quant: a type of weights, auto, or "" for the type of the
// checkpoint.
type quantType string

// quantAuto selects the largest type that fits in memory.
const quantAuto = quantType("auto")

// Decode reads the value after the flag. It sets auto if another flag or nothing follows.
func (q *quantType) Decode(ctx *kong.DecodeContext) error {
	if !ctx.Scan.Peek().IsValue() {
		*q = quantAuto
		return nil
	}
	var text string
	if err := ctx.Scan.PopValueInto("type", &text); err != nil {
		return err
	}
	*q = quantType(text)
	return nil
}
