package f32

import "math"

// FMA returns a*b+c with one rounding, on every machine.
//
// The float64 product of two float32 is exact. Adding c rounds to 53 bits. Rounding that to 24 bits
// is wrong only if the 53-bit value is exactly a 24-bit tie. In the subnormal range the tie has another
// pattern. For a tie the sum is first corrected to "round to odd", which makes
// the second rounding exact.
func FMA(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	bits := math.Float64bits(s)
	if bits&0x1fffffff == 0x10000000 || bits<<1-1 < 0x3810000000000000<<1 {
		return fmaTie(p, float64(c), s)
	}
	return float32(s)
}

func fmaTie(p, c, s float64) float32 {
	bits := math.Float64bits(s)
	if bits&1 == 0 && !math.IsInf(s, 0) && s == s {
		// TwoSum: s + e == p + c exactly.
		pp := s - c
		cc := s - pp
		e := (p - pp) + (c - cc)
		if e != 0 {
			if (e > 0) == (s > 0) {
				bits++
			} else {
				bits--
			}
			s = math.Float64frombits(bits)
		}
	}
	return float32(s)
}
