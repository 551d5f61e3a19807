package modeltest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Quantize rounds whole blocks of v to a GGUF type: like ggml's reference for the types of 32, and
// simply (range of each sub-block, no search) for k-quants.
func Quantize(typ gguf.Type, v []float32) []byte {
	var out []byte
	switch typ {
	case gguf.F32, gguf.F16, gguf.BF16:
		for _, x := range v {
			out = appendElement(out, map[gguf.Type]tensor.DType{gguf.F32: tensor.F32, gguf.F16: tensor.F16, gguf.BF16: tensor.BF16}[typ], x)
		}
		return out
	}
	block, ok := map[gguf.Type]func([]byte, []float32) []byte{gguf.Q8_0: q8, gguf.Q4_0: q4, gguf.Q4_K: q4k, gguf.Q5_K: q5k,
		gguf.Q6_K: q6k, gguf.MXFP4: mxfp4}[typ]
	if !ok {
		panic(fmt.Sprintf("modeltest: does not quantize to %v", typ))
	}
	for n := typ.Block(); len(v) > 0; v = v[n:] {
		out = block(out, v[:n])
	}
	return out
}

// appendHalf rounds a scale to the nearest float16. Scales in tests stay below its largest value.
func appendHalf(b []byte, v float32) []byte {
	a, sign := math.Abs(float64(v)), uint16(math.Float32bits(v)>>16)&0x8000
	e := max(math.Ilogb(a), -14)
	if a == 0 {
		e = -14
	}
	steps := uint16(math.RoundToEven(math.Ldexp(a, 10-e))) // 1024 and more: normal
	return binary.LittleEndian.AppendUint16(b, sign|(uint16(e+14)<<10+steps))
}

// asHalf is v after a round trip through float16.
func asHalf(v float32) float32 {
	h := binary.LittleEndian.Uint16(appendHalf(nil, v))
	sign := float64(1)
	if h&0x8000 != 0 {
		sign = -1
	}
	if h&0x7c00 == 0 {
		return float32(sign * math.Ldexp(float64(h&0x3ff), -24))
	}
	return float32(sign * math.Ldexp(1+float64(h&0x3ff)/1024, int(h>>10&31)-15))
}

func clamp(v float64, lo, hi int) int { return max(lo, min(hi, int(math.Round(v)))) }

func ratio(a, b float32) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func q8(b []byte, v []float32) []byte {
	top := 0.0
	for _, x := range v {
		top = max(top, math.Abs(float64(x)))
	}
	d := float32(top / 127)
	b = appendHalf(b, d)
	for _, x := range v {
		b = append(b, byte(clamp(ratio(x, d), -127, 127)))
	}
	return b
}

// mxfp4 rounds to the nearest element, towards zero between two. The largest becomes 4 to 6.
func mxfp4(b []byte, v []float32) []byte {
	top := 0.0
	for _, x := range v {
		top = max(top, math.Abs(float64(x)))
	}
	e := -127
	if top > 0 {
		e = max(math.Ilogb(top)-2, -127)
	}
	b = append(b, byte(e+127))
	code := func(x float32) (at byte) {
		for i, y := range []float64{0, .5, 1, 1.5, 2, 3, 4, 6} {
			if a := math.Ldexp(math.Abs(float64(x)), -e); math.Abs(a-y) < math.Abs(a-[]float64{0, .5, 1, 1.5, 2, 3, 4, 6}[at]) {
				at = byte(i)
			}
		}
		if x < 0 {
			at |= 8
		}
		return at
	}
	for j := range 16 {
		b = append(b, code(v[j])|code(v[j+16])<<4)
	}
	return b
}

func q4(b []byte, v []float32) []byte {
	var top float32 // the element of largest magnitude, with its sign
	for _, x := range v {
		if math.Abs(float64(x)) > math.Abs(float64(top)) {
			top = x
		}
	}
	d := top / -8
	b = appendHalf(b, d)
	for j := range 16 {
		lo, hi := clamp(ratio(v[j], d)+8, 0, 15), clamp(ratio(v[j+16], d)+8, 0, 15)
		b = append(b, byte(lo|hi<<4))
	}
	return b
}

// ranges returns the scales and minima of the 8 sub-blocks of Q4_K and Q5_K, in 6 bits, packed as 12
// bytes.
func ranges(v []float32, levels float32) (d, dmin float32, s, m [8]int, packed [12]byte) {
	var scale, low [8]float32
	for j := range 8 {
		least, most := float32(0), v[j*32]
		for _, x := range v[j*32 : j*32+32] {
			least, most = min(least, x), max(most, x)
		}
		scale[j], low[j] = (most-least)/levels, -least
		d, dmin = max(d, scale[j]/63), max(dmin, low[j]/63)
	}
	d, dmin = asHalf(d), asHalf(dmin)
	for j := range 8 {
		s[j], m[j] = clamp(ratio(scale[j], d), 0, 63), clamp(ratio(low[j], dmin), 0, 63)
		if j < 4 {
			packed[j] |= byte(s[j])
			packed[j+4] |= byte(m[j])
			continue
		}
		packed[j+4] = byte(s[j]&15 | m[j]&15<<4)
		packed[j-4] |= byte(s[j] >> 4 << 6)
		packed[j] |= byte(m[j] >> 4 << 6)
	}
	return d, dmin, s, m, packed
}

func q4k(b []byte, v []float32) []byte {
	d, dmin, s, m, packed := ranges(v, 15)
	b = append(appendHalf(appendHalf(b, d), dmin), packed[:]...)
	for i := 0; i < 256; i += 64 {
		for l := range 32 {
			lo := level(v[i+l], d, dmin, s[i/32], m[i/32], 15)
			hi := level(v[i+32+l], d, dmin, s[i/32+1], m[i/32+1], 15)
			b = append(b, byte(lo|hi<<4))
		}
	}
	return b
}

func level(x, d, dmin float32, s, m, top int) int {
	return clamp(ratio(x+dmin*float32(m), d*float32(s)), 0, top)
}

func q5k(b []byte, v []float32) []byte {
	d, dmin, s, m, packed := ranges(v, 31)
	b = append(appendHalf(appendHalf(b, d), dmin), packed[:]...)
	var high [32]byte
	var low [128]byte
	for i, x := range v {
		j, l := i/32, i%32
		q := level(x, d, dmin, s[j], m[j], 31)
		high[l] |= byte(q >> 4 << j)
		low[j/2*32+l] |= byte(q & 15 << (j % 2 * 4))
	}
	return append(append(b, high[:]...), low[:]...)
}

func q6k(b []byte, v []float32) []byte {
	var scale [16]float32
	var d float32
	for i := range 16 {
		for _, x := range v[i*16 : i*16+16] {
			scale[i] = max(scale[i], float32(math.Abs(float64(x)))/31)
		}
		d = max(d, scale[i]/127)
	}
	d = asHalf(d)
	var low [128]byte
	var high [64]byte
	var scales [16]byte
	for i, x := range v {
		s := clamp(ratio(scale[i/16], d), 0, 127)
		scales[i/16] = byte(s)
		q := clamp(ratio(x, d*float32(s)), -32, 31) + 32
		half, run, l := i/128, i%128/32, i%32
		low[half*64+run%2*32+l] |= byte(q & 15 << (run / 2 * 4))
		high[half*32+l] |= byte(q >> 4 << (run * 2))
	}
	return appendHalf(append(append(append(b, low[:]...), high[:]...), scales[:]...), d)
}
