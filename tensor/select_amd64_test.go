package tensor

import (
	"testing"

	"golang.org/x/sys/cpu"
)

// A machine with AVX-512 but without VNNI mixes the two sets; the bits stay.
func TestWithoutVNNI(t *testing.T) {
	if len(machine) < 3 {
		t.Skip("needs AVX-512")
	}
	mixed := *kernelsAVX512
	mixed.tile[Q8_0], mixed.tile[Q4_0] = kernelsAVX2.tile[Q8_0], kernelsAVX2.tile[Q4_0]
	was := active
	defer func() { active = was }()
	p := NewPool(1)
	defer p.Close()
	r := rng(30)
	const rows, k, n = 70, 384, 7
	for _, dt := range []DType{Q8_0, Q4_0, BF16} {
		w := newWeight(t, dt, normal(r, rows*k), rows, k, 0, Units(k))
		x := normal(r, n*k)
		got, want := make([]float32, n*rows), make([]float32, n*rows)
		active = kernelsAVX512
		p.MatMul(want, rows, w, x, k, n)
		active = &mixed
		p.MatMul(got, rows, w, x, k, n)
		sameBits(t, dt.String(), got, want)
	}
}

// Which kernel multiplies one token by four panels depends on the processor's maker.
func TestRisingAndAheadSameBits(t *testing.T) {
	if len(machine) < 3 || !cpu.X86.HasAVX512VNNI {
		t.Skip("needs AVX-512 VNNI")
	}
	was := active
	defer func() { active = was }()
	p := NewPool(1)
	defer p.Close()
	r := rng(31)
	const rows, k = 192, 1056
	for dt := range risingAVX512 {
		w := newWeight(t, dt, normal(r, rows*k), rows, k, 0, Units(k))
		x := normal(r, k)
		got, want := make([]float32, rows), make([]float32, rows)
		active = implementations()[len(machine)-1]
		p.MatMul(want, rows, w, x, k, 1)
		for _, f := range []func(*tileArgs){risingAVX512[dt], tilesAVX512[dt][2][0]} {
			mixed := *kernelsAVX512
			mixed.tile[dt][2][0] = f
			active = &mixed
			clear(got)
			p.MatMul(got, rows, w, x, k, 1)
			sameBits(t, dt.String(), got, want)
		}
	}
}
