package tensor

import "testing"

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
