package eval

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
)

// pixelsPerPoint makes text of 8 points legible on any screen.
const pixelsPerPoint = 2

// raster draws with a round pen: how much ink a pixel gets follows from the
// distance of its centre to the line.
type raster struct{ img *image.RGBA }

func newRaster(w, h int) *raster {
	r := &raster{image.NewRGBA(image.Rect(0, 0, w*pixelsPerPoint, h*pixelsPerPoint))}
	draw.Draw(r.img, r.img.Bounds(), image.NewUniform(paper), image.Point{}, draw.Src)
	return r
}

func (r *raster) write(w io.Writer) error {
	return (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(w, r.img)
}

func (r *raster) rect(x, y, w, h float64, fill color.RGBA) {
	at := func(v float64) int { return int(math.Round(v * pixelsPerPoint)) }
	draw.Draw(r.img, image.Rect(at(x), at(y), at(x+w), at(y+h)), image.NewUniform(fill), image.Point{}, draw.Src)
}

func (r *raster) line(x1, y1, x2, y2, width, dash float64, c color.RGBA) {
	if dash <= 0 {
		r.stroke(x1, y1, x2, y2, width, c)
		return
	}
	long := math.Hypot(x2-x1, y2-y1)
	for from := 0.0; from < long; from += 2 * dash {
		a, b := from/long, min(from+dash, long)/long
		r.stroke(x1+a*(x2-x1), y1+a*(y2-y1), x1+b*(x2-x1), y1+b*(y2-y1), width, c)
	}
}

func (r *raster) dot(x, y, radius float64, fill color.RGBA) { r.stroke(x, y, x, y, 2*radius, fill) }

func (r *raster) text(x, y, height float64, at anchor, c color.RGBA, s string) {
	x -= textWidth(s, height) * float64(at) / 2
	unit, pen := height/6, max(0.8, height*0.125)
	for _, g := range s {
		strokes, ok := glyphs[g]
		if !ok && g != ' ' {
			strokes = "0040460600" // a box
		}
		r.glyph(strokes, x, y-height, unit, pen, c)
		x += (glyphWidth(g) + glyphGap) * unit
	}
}

func (r *raster) glyph(strokes string, x, y, unit, pen float64, c color.RGBA) {
	at := func(i int) (float64, float64) {
		return x + float64(strokes[i]-'0')*unit, y + float64(strokes[i+1]-'0')*unit
	}
	for i := 0; i+3 < len(strokes); {
		if strokes[i] == ' ' {
			i++
			continue
		}
		if strokes[i+2] == ' ' { // the end of a stroke
			i += 3
			continue
		}
		x1, y1 := at(i)
		x2, y2 := at(i + 2)
		r.stroke(x1, y1, x2, y2, pen, c)
		i += 2
	}
}

// stroke draws one line with round ends.
func (r *raster) stroke(x1, y1, x2, y2, width float64, c color.RGBA) {
	const s = pixelsPerPoint
	x1, y1, x2, y2, half := x1*s, y1*s, x2*s, y2*s, width*s/2
	b := r.img.Bounds()
	lo := func(a, z float64, least int) int { return max(least, int(math.Floor(min(a, z)-half-1))) }
	hi := func(a, z float64, most int) int { return min(most, int(math.Ceil(max(a, z)+half+1))) }
	dx, dy := x2-x1, y2-y1
	long := dx*dx + dy*dy
	for py := lo(y1, y2, b.Min.Y); py < hi(y1, y2, b.Max.Y); py++ {
		for px := lo(x1, x2, b.Min.X); px < hi(x1, x2, b.Max.X); px++ {
			fx, fy, t := float64(px)+0.5, float64(py)+0.5, 0.0
			if long > 0 {
				t = max(0, min(1, ((fx-x1)*dx+(fy-y1)*dy)/long))
			}
			if cover := half + 0.5 - math.Hypot(fx-x1-t*dx, fy-y1-t*dy); cover > 0 {
				r.img.SetRGBA(px, py, mix(r.img.RGBAAt(px, py), c, min(1, cover)))
			}
		}
	}
}
