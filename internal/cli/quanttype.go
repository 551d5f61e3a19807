package cli

import "github.com/alecthomas/kong"

// quantType is the value of --quant: a type of weights, auto, or empty for the type of the
// checkpoint.
type quantType string

// quantAuto asks for the largest type that fits in memory.
const quantAuto = quantType("auto")

// Decode takes the value that follows the flag, or auto where another flag or nothing follows.
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
