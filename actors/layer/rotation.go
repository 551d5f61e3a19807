package layer

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Rotation holds cos and sin by position, grown as positions are met. As in the reference
// implementation the angle is a float32 product.
type Rotation struct {
	inv       []float64
	amplitude float32   // multiplies what fill gives; 0 counts as 1
	cos, sin  []float32 // (positions, half)
}

// RotationsOf are those that a model's layers choose from (Weights.Rope).
func RotationsOf(c *model.Config) (out []*Rotation) {
	for _, inv := range c.Rotations() {
		out = append(out, &Rotation{inv: inv, amplitude: float32(c.Rope.Amplitude)})
	}
	return out
}

// Until makes the positions up to one known to At.
func (r *Rotation) Until(pos int) {
	for have := len(r.cos) / len(r.inv); have <= pos; have++ {
		for _, f := range r.inv {
			angle := float64(float32(have) * float32(f))
			r.cos = append(r.cos, float32(math.Cos(angle)))
			r.sin = append(r.sin, float32(math.Sin(angle)))
		}
	}
}

// At is the row of a position at or before one that was met, without the amplitude: what a
// step turns keys by while its layers run, on many workers at once.
func (r *Rotation) At(pos int) (cos, sin []float32) {
	half := len(r.inv)
	return r.cos[pos*half : (pos+1)*half], r.sin[pos*half : (pos+1)*half]
}

func (r *Rotation) fill(pos int, cos, sin []float32) {
	r.Until(pos)
	c, s := r.At(pos)
	copy(cos, c)
	copy(sin, s)
	if r.amplitude != 0 && r.amplitude != 1 {
		for i := range cos {
			cos[i], sin[i] = cos[i]*r.amplitude, sin[i]*r.amplitude
		}
	}
}
