// Command rulerplot plots the results of `shoal lab ruler -o DIR`. For each prompt length it writes
// accuracy-LENGTH (accuracy by cache budget) and depth-LENGTH (single needles by depth) into DIR, as
// PNG and SVG:
//
//	go run ./internal/tools/rulerplot DIR
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-analyze/charts"

	"github.com/shoal-llm/shoal/internal/eval"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: rulerplot DIR (the folder that `shoal lab ruler -o DIR` wrote)")
		os.Exit(2)
	}
	names, err := plot(os.Args[1])
	for _, name := range names {
		fmt.Println(filepath.Join(os.Args[1], name))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rulerplot:", err)
		os.Exit(1)
	}
}

// summary adds the plots to a summary.
type summary struct{ *eval.Summary }

// plot reads summary.json in dir and writes the plots next to it. It returns the files that it wrote.
func plot(dir string) (names []string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil {
		return nil, err
	}
	s := summary{new(eval.Summary)}
	if err := json.Unmarshal(text, s.Summary); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "summary.json"), err)
	}
	for _, l := range s.Lengths() {
		for _, format := range []string{charts.ChartOutputPNG, charts.ChartOutputSVG} {
			for _, p := range []struct {
				name string
				draw func(length int, format string) ([]byte, error)
			}{{"accuracy", s.accuracy}, {"depth", s.depths}} {
				b, err := p.draw(l, format)
				if err != nil {
					return names, fmt.Errorf("the plot %s of %d tokens: %w", p.name, l, err)
				}
				if b == nil {
					continue
				}
				name := fmt.Sprintf("%s-%d.%s", p.name, l, format)
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
					return names, err
				}
				names = append(names, name)
			}
		}
	}
	return names, nil
}
