package dequant

import "github.com/shoal-llm/shoal/internal/engine/gguf"

// HasCodes reports whether Codes supports the type.
func HasCodes(t gguf.Type) bool { return t == gguf.MXFP4 || t == gguf.IQ4_NL || t == gguf.IQ4_XS }

// Codes returns the 32 elements of a row from lo on, a multiple of 32, as integers with one scale.
func Codes(q *[32]int16, row []byte, t gguf.Type, lo int) (scale float32) {
	b, sub := row[lo/t.Block()*t.BlockBytes():], lo%t.Block()/32
	values, codes := &nonLinear, b[2:]
	switch t {
	case gguf.MXFP4:
		values, codes, scale = &FP4, b[1:], FP4Scale(b[0])
	case gguf.IQ4_XS:
		codes, scale = b[8+16*sub:], scaleIQ4XS(b, sub)
	default:
		scale = half(b, 0)
	}
	for j, c := range codes[:16] {
		q[j], q[j+16] = int16(values[c&15]), int16(values[c>>4])
	}
	return scale
}
