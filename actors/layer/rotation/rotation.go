// Package rotation has the tables of rotary positions that a model's layers choose from.
package rotation

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// Table is a table of cos and sin by position, which grows with the longest sequence up to mostTabled
// positions. Later ones are computed each time. The angle is a float32 product, as in the reference
// implementation.
type Table struct {
	inv       []float64 // angle per position of each pair; 0: the pair does not rotate
	amplitude float32   // factor of cos and sin of the pairs that rotate; 0 counts as 1
	cos, sin  []float32 // (positions, half)
}

// TablesOf returns the rotations that a model's layers choose from (Weights.Rope).
func TablesOf(c *model.Config) (out []*Table) {
	for _, r := range c.Rotations() {
		out = append(out, New(r.Freq, r.Amplitude))
	}
	return out
}

// RopesOf returns the rotation of each cache's keys. The tables of rotations may grow later.
func RopesOf(c *model.Config, rotations []*Table) kvcache.Ropes {
	ropes := make(kvcache.Ropes, c.CacheLayers())
	for i := range c.Layers {
		if c.Recurrent(i) {
			continue
		}
		ropes[c.CacheOf(i)] = rotations[c.RopeOf(i)].At
	}
	return ropes
}

// QueryFactor returns the factor of the queries of a position.
func QueryFactor(g model.Growth, pos int) float32 {
	if g.Next {
		pos++
	}
	return 1 + float32(g.Beta*f32.Log(float32(1+pos/g.Original)))
}

// mostTabled bounds the memory of a table: 128 MiB for heads of 128.
const mostTabled = 1 << 18

// Until extends the table up to position pos.
func (r *Table) Until(pos int) {
	for have := len(r.cos) / len(r.inv); have <= min(pos, mostTabled-1); have++ {
		r.cos, r.sin = r.compute(r.cos, r.sin, have)
	}
}

// compute appends cos and sin of a position.
func (r *Table) compute(cos, sin []float32, pos int) (c, s []float32) {
	for _, f := range r.inv {
		angle := float64(float32(pos) * float32(f))
		cos, sin = append(cos, float32(math.Cos(angle))), append(sin, float32(math.Sin(angle)))
	}
	return cos, sin
}

// At returns cos and sin of a position in the table, without the amplitude. While layers run,
// several threads use it to rotate cached keys.
func (r *Table) At(pos int) (cos, sin []float32) {
	half := len(r.inv)
	if pos >= mostTabled {
		return r.compute(make([]float32, 0, half), make([]float32, 0, half), pos)
	}
	return r.cos[pos*half : (pos+1)*half], r.sin[pos*half : (pos+1)*half]
}

// New returns a table of pairs that turn by the given angles per position.
func New(angles []float64, amplitude float32) *Table {
	return &Table{inv: angles, amplitude: amplitude}
}

// Pairs returns the number of pairs of a head.
func (r *Table) Pairs() int { return len(r.inv) }

// Fill writes cos and sin of a position, with the amplitude.
func (r *Table) Fill(pos int, cos, sin []float32) {
	r.Until(pos)
	c, s := r.At(pos)
	copy(cos, c)
	copy(sin, s)
	if r.amplitude != 0 && r.amplitude != 1 {
		for i, f := range r.inv {
			if f != 0 {
				cos[i], sin[i] = cos[i]*r.amplitude, sin[i]*r.amplitude
			}
		}
	}
}
