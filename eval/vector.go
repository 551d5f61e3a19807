package eval

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
)

// vector writes SVG.
type vector struct{ b bytes.Buffer }

func newVector(w, h int) *vector {
	v := &vector{}
	fmt.Fprintf(&v.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="system-ui, sans-serif">`+"\n", w, h)
	v.rect(0, 0, float64(w), float64(h), paper)
	return v
}

func (v *vector) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s</svg>\n", v.b.Bytes())
	return err
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

func (v *vector) rect(x, y, w, h float64, fill color.RGBA) {
	fmt.Fprintf(&v.b, `<rect x="%.4g" y="%.4g" width="%.4g" height="%.4g" fill="%s"/>`+"\n", x, y, w, h, hex(fill))
}

func (v *vector) line(x1, y1, x2, y2, width, dash float64, c color.RGBA) {
	fmt.Fprintf(&v.b, `<line x1="%.4g" y1="%.4g" x2="%.4g" y2="%.4g" stroke="%s" stroke-width="%.3g" stroke-linecap="round"`, x1, y1, x2, y2, hex(c), width)
	if dash > 0 {
		fmt.Fprintf(&v.b, ` stroke-dasharray="%.3g %.3[1]g"`, dash)
	}
	fmt.Fprintln(&v.b, "/>")
}

func (v *vector) dot(x, y, radius float64, fill color.RGBA) {
	fmt.Fprintf(&v.b, `<circle cx="%.4g" cy="%.4g" r="%.3g" fill="%s"/>`+"\n", x, y, radius, hex(fill))
}

func (v *vector) text(x, y, height float64, at anchor, c color.RGBA, s string) {
	fmt.Fprintf(&v.b, `<text x="%.4g" y="%.4g" font-size="%.3g" text-anchor="%s" fill="%s">`, x, y, height*1.4, []string{"start", "middle", "end"}[at], hex(c))
	_ = xml.EscapeText(&v.b, []byte(s)) // a buffer does not fail
	fmt.Fprintln(&v.b, "</text>")
}
