package eval

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// plot is a picture that can be drawn on any canvas.
type plot struct {
	width, height int // points
	draw          func(canvas)
}

// WritePNG encodes the picture, two pixels a point.
func (p *plot) writePNG(w io.Writer) error {
	r := newRaster(p.width, p.height)
	p.draw(r)
	return r.write(w)
}

func (p *plot) writeSVG(w io.Writer) error {
	v := newVector(p.width, p.height)
	p.draw(v)
	return v.write(w)
}

// WriteFiles writes summary.json, and for every length the plots
// accuracy-LENGTH and depth-LENGTH as .png and .svg, and returns their names.
func (s *Summary) WriteFiles(dir string) (names []string, err error) {
	save := func(name string, write func(io.Writer) error) {
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err = write(&b); err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)
		}
		names = append(names, name)
	}
	save("summary.json", func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(s)
	})
	for _, l := range s.lengths() {
		for _, p := range []struct {
			name string
			plot *plot
		}{{"accuracy", s.accuracy(l)}, {"depth", s.depths(l)}} {
			if p.plot == nil {
				continue
			}
			save(fmt.Sprintf("%s-%d.png", p.name, l), p.plot.writePNG)
			save(fmt.Sprintf("%s-%d.svg", p.name, l), p.plot.writeSVG)
		}
	}
	return names, err
}

func (s *Summary) rows(length int) []Row {
	return slices.DeleteFunc(slices.Clone(s.Rows), func(r Row) bool { return r.Length != length })
}

// heading are the two lines above a plot.
func (s *Summary) heading(c canvas, x float64, title string, length int) {
	c.text(x, 34, 13, start, ink, title)
	c.text(x, 56, 8.5, start, faint, fmt.Sprintf("%s, %d-token prompts, %d samples a task", s.Model, length, s.samples(length)))
}

// series is one line of the accuracy plot.
type series struct {
	name  string
	color color.RGBA
	rows  []Row // by budget; a single row without one is drawn as a level
	label float64
}

// accuracy draws the mean exact match against the tokens that are kept, on a
// logarithmic axis; policies without a budget are levels. nil: nothing to draw.
func (s *Summary) accuracy(length int) *plot {
	lines, budgets := s.series(length)
	if len(lines) == 0 {
		return nil
	}
	const left, top, right, bottom = 64.0, 84.0, 660.0, 440.0
	y := func(v float64) float64 { return bottom - v/100*(bottom-top) }
	x := func(int) float64 { return (left + right) / 2 }
	if n := len(budgets); n > 1 {
		lo, hi := math.Log(float64(budgets[0])), math.Log(float64(budgets[n-1]))
		x = func(b int) float64 { return left + 28 + (math.Log(float64(b))-lo)/(hi-lo)*(right-left-56) }
	}
	return &plot{880, 500, func(c canvas) {
		s.heading(c, left, "Accuracy by cache budget", length)
		for v := 0; v <= 100; v += 20 {
			c.line(left, y(float64(v)), right, y(float64(v)), 1, 0, grid)
			c.text(left-10, y(float64(v))+4, 8.5, end, faint, strconv.Itoa(v))
		}
		c.line(left, bottom, right, bottom, 1.2, 0, faint)
		for _, b := range budgets {
			c.line(x(b), bottom, x(b), bottom+5, 1.2, 0, faint)
			c.text(x(b), bottom+20, 8.5, middle, faint, strconv.Itoa(b))
		}
		c.text((left+right)/2, bottom+44, 8.5, middle, faint, "tokens kept per head (log scale)")
		c.text(left, top-10, 8.5, start, faint, "exact match %, "+s.meanName())
		for _, l := range lines {
			if l.rows[0].Budget == 0 {
				c.line(left, y(l.rows[0].Mean), right, y(l.rows[0].Mean), 1.8, 5, l.color)
			}
			for i, r := range l.rows {
				if r.Budget == 0 {
					continue
				}
				if i > 0 {
					c.line(x(l.rows[i-1].Budget), y(l.rows[i-1].Mean), x(r.Budget), y(r.Mean), 2.2, 0, l.color)
				}
				c.dot(x(r.Budget), y(r.Mean), 4, l.color)
			}
			last := l.rows[len(l.rows)-1]
			from := right
			if last.Budget > 0 {
				from = x(last.Budget) + 8
			}
			c.line(from, y(last.Mean), right+14, l.label, 0.7, 0, l.color)
			c.text(right+20, l.label+4, 8.5, start, l.color, fmt.Sprintf("%s  %.0f", l.name, last.Mean))
		}
	}}
}

// series groups the rows of a length into lines and finds places for their names.
func (s *Summary) series(length int) (lines []*series, budgets []int) {
	for _, r := range s.rows(length) {
		if r.MeanTasks == 0 {
			continue
		}
		name := r.Family
		if r.Budget == 0 {
			name = r.Policy
		} else {
			budgets = append(budgets, r.Budget)
		}
		at := slices.IndexFunc(lines, func(l *series) bool { return l.name == name && l.rows[0].Budget > 0 && r.Budget > 0 })
		if at < 0 {
			at = len(lines)
			lines = append(lines, &series{name: name})
		}
		lines[at].rows = append(lines[at].rows, r)
	}
	slices.Sort(budgets)
	budgets = slices.Compact(budgets)
	used := 0
	for _, l := range lines {
		slices.SortStableFunc(l.rows, func(a, b Row) int { return cmp.Compare(a.Budget, b.Budget) })
		if l.color = ink; l.rows[0].Budget > 0 || l.name != "full" && l.name != DefaultPolicy {
			l.color = palette[used%len(palette)]
			used++
		}
	}
	placeLabels(lines, 84, 440)
	return lines, budgets
}

// placeLabels sets names beside the ends of their lines, pushed apart downwards,
// then back up from the lower edge.
func placeLabels(lines []*series, top, bottom float64) {
	const apart = 17
	order := slices.Clone(lines)
	last := func(l *series) float64 { return l.rows[len(l.rows)-1].Mean }
	slices.SortStableFunc(order, func(a, b *series) int { return cmp.Compare(last(b), last(a)) })
	for i, l := range order {
		l.label = bottom - last(l)/100*(bottom-top)
		if i > 0 {
			l.label = max(l.label, order[i-1].label+apart)
		}
	}
	limit := bottom
	for _, l := range slices.Backward(order) {
		l.label = min(l.label, limit)
		limit = l.label - apart
	}
}

// depths draws a heat map: a row per policy, a column per eighth of the haystack,
// the exact match of single needles in each. nil: there were none.
func (s *Summary) depths(length int) *plot {
	var rows []Row
	wide := 0.0
	for _, r := range s.rows(length) {
		if slices.ContainsFunc(r.Depth[:], func(v float64) bool { return v >= 0 }) {
			rows = append(rows, r)
			wide = max(wide, textWidth(r.Policy, 8.5))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	const top, cw, ch = 104.0, 64.0, 34.0
	left := 32 + min(wide, 420)
	width := int(left+Eighths*cw) + 40
	return &plot{max(width, 620), int(top+ch*float64(len(rows))) + 84, func(c canvas) {
		s.heading(c, 20, "Single needles by depth", length)
		for e := range Eighths {
			c.text(left+(float64(e)+0.5)*cw, top-10, 8, middle, faint, fmt.Sprintf("%d-%d", e*100/Eighths, (e+1)*100/Eighths))
		}
		for i, r := range rows {
			y := top + float64(i)*ch
			c.text(left-12, y+ch/2+4, 8.5, end, ink, r.Policy)
			for e, v := range r.Depth {
				s.cell(c, left+float64(e)*cw, y, cw, ch, v)
			}
		}
		y := top + ch*float64(len(rows))
		c.text(left+Eighths*cw/2, y+22, 8.5, middle, faint, "depth of the needle in the text, %")
		for i := range 100 {
			c.rect(left+float64(i)*2, y+42, 2, 12, heat(float64(i)))
		}
		c.text(left-8, y+52, 8, end, faint, "0")
		c.text(left+208, y+52, 8, start, faint, "100 exact match %")
	}}
}

func (s *Summary) cell(c canvas, x, y, w, h, v float64) {
	if v < 0 {
		c.text(x+w/2, y+h/2+4, 8.5, middle, faint, "-")
		return
	}
	c.rect(x+1, y+1, w-2, h-2, heat(v))
	text := ink
	if v > 55 {
		text = paper
	}
	c.text(x+w/2, y+h/2+4, 8.5, middle, text, fmt.Sprintf("%.0f", v))
}

// heat is the colour of a percentage.
func heat(v float64) color.RGBA { return mix(rgb(0xeef3f8), rgb(0x08519c), v/100) }
