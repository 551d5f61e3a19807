package eval

import "image/color"

// canvas is what a plot is drawn on: x to the right, y down, in points. There are
// two, raster (PNG) and vector (SVG).
type canvas interface {
	rect(x, y, w, h float64, fill color.RGBA)
	// line is drawn with round ends; dash 0: solid.
	line(x1, y1, x2, y2, width, dash float64, c color.RGBA)
	dot(x, y, radius float64, fill color.RGBA)
	// text stands with its baseline at y; height is that of capitals.
	text(x, y, height float64, at anchor, c color.RGBA, s string)
}

type anchor uint8

const (
	start anchor = iota
	middle
	end
)

func rgb(hex uint32) color.RGBA {
	return color.RGBA{R: uint8(hex >> 16), G: uint8(hex >> 8), B: uint8(hex), A: 255}
}

// Ink of everything that is not data.
var (
	paper = rgb(0xffffff)
	ink   = rgb(0x222222)
	faint = rgb(0x666666)
	grid  = rgb(0xe3e3e3)
)

// palette is Okabe and Ito's, which colour-blind readers can tell apart, with a
// darker yellow.
var palette = []color.RGBA{
	rgb(0x0072b2), rgb(0xd55e00), rgb(0x009e73), rgb(0xcc79a7), rgb(0xe69f00), rgb(0x56b4e9), rgb(0x8c6d00), rgb(0x7f7f7f),
}

// mix goes from a (0) to b (1).
func mix(a, b color.RGBA, t float64) color.RGBA {
	c := func(x, y uint8) uint8 { return uint8(float64(x) + t*(float64(y)-float64(x)) + 0.5) }
	return color.RGBA{R: c(a.R, b.R), G: c(a.G, b.G), B: c(a.B, b.B), A: 255}
}
