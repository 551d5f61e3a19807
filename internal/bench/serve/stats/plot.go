package stats

import (
	"fmt"
	"html"
	"strings"
)

// Size of the plot, and of the four panels in it.
const (
	plotWidth, plotHeight   = 760, 470
	panelWidth, panelHeight = 310, 150
)

// Line is one load of a plot.
type Line struct {
	Label   string
	Summary *Summary
}

// colors of lines. People with a colour vision deficiency can distinguish them (Okabe and Ito).
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// SVG draws the cumulative distributions of TTFT, TPOT, ITL and E2E, one line per load.
func SVG(title string, lines []Line) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n",
		plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="20" y="20" font-size="13">%s</text>`+"\n",
		html.EscapeString(title))
	for i, l := range lines {
		x := 20 + i*(plotWidth-40)/max(len(lines), 1)
		fmt.Fprintf(&b, `<rect x="%d" y="31" width="10" height="10" fill="%s"/><text x="%d" y="40">%s</text>`+"\n", x,
			colors[i%len(colors)], x+14, html.EscapeString(l.Label))
	}
	for i, p := range []struct {
		name string
		of   func(*Summary) *Dist
	}{
		{"time to first token (ms)", func(s *Summary) *Dist { return &s.TTFT }},
		{"time per output token (ms)", func(s *Summary) *Dist { return &s.TPOT }},
		{"inter-token latency (ms)", func(s *Summary) *Dist { return &s.ITL }},
		{"whole request (ms)", func(s *Summary) *Dist { return &s.E2E }},
	} {
		panel(&b, 50+i%2*(panelWidth+50), 65+i/2*(panelHeight+55), p.name, lines, p.of)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func panel(b *strings.Builder, x, y int, name string, lines []Line, of func(*Summary) *Dist) {
	most := 0.0
	for _, l := range lines {
		most = max(most, of(l.Summary).Quantile(0.995))
	}
	fmt.Fprintf(b, `<g transform="translate(%d %d)"><text x="0" y="-6">%s</text>`+"\n", x, y, name)
	for _, share := range []float64{0, 0.5, 0.9, 1} {
		at := panelHeight * (1 - share)
		fmt.Fprintf(b, `<path d="M0 %.1fH%d" stroke="#ddd"/><text x="-4" y="%.1f" text-anchor="end">%.0f%%</text>`+"\n",
			at, panelWidth, at+4, 100*share)
	}
	for i := range 5 {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%.3g</text>`+"\n", i*panelWidth/4, panelHeight+14, most*float64(i)/4)
	}
	for i, l := range lines {
		d := of(l.Summary)
		if d.Count == 0 || most == 0 {
			continue
		}
		fmt.Fprintf(b, `<path fill="none" stroke="%s" stroke-width="1.5" d="M`, colors[i%len(colors)])
		for step := range 101 {
			share := float64(step) / 100
			fmt.Fprintf(b, "%.1f %.1f ", min(d.Quantile(share)/most, 1)*panelWidth, panelHeight*(1-share))
		}
		b.WriteString("\"/>\n")
	}
	b.WriteString("</g>\n")
}
