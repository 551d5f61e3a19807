package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/eval"
)

func testSummary() *eval.Summary {
	s := &eval.Summary{Model: "fry & <co>", Seed: 1, Tasks: []string{"passkey"}}
	depth := [eval.DepthRanges]float64{0, 12, 25, 50, 75, 100, -1, 60}
	add := func(policy, family string, budget int, mean float64) {
		s.Rows = append(s.Rows, eval.Row{Policy: policy, Family: family, Budget: budget, Length: 4096, Mean: mean, MeanTasks: 9, Depth: depth,
			Tasks: map[string]eval.Cell{"passkey": {Samples: 20, Exact: mean}}})
	}
	add("full", "full", 0, 98.8)
	add("streaming/512", "streaming", 512, 6.9)
	add("streaming/1024", "streaming", 1024, 16)
	add("snapkv/512", "snapkv", 512, 75.2)
	add("snapkv/1024", "snapkv", 1024, 85.1)
	add("snapstream/512", "snapstream", 512, 75)
	add("snapstream/2048", "snapstream", 2048, 84.9)
	return s
}

// TestPlotFiles: every file exists, decodes, has its size, and is neither empty nor cut off at an
// edge.
func TestPlotFiles(t *testing.T) {
	dir := t.TempDir()
	if err := testSummary().Write(dir); err != nil {
		t.Fatal(err)
	}
	names, err := plot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, " "); got != "accuracy-4096.png depth-4096.png accuracy-4096.svg depth-4096.svg" {
		t.Error(got)
	}
	for name, size := range map[string][2]int{"accuracy-4096": {880, 500}, "depth-4096": {880, 180 + 7*34}} {
		b, err := os.ReadFile(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		box := img.Bounds()
		if size[0] > 0 && box.Dx() != size[0] || box.Dy() != size[1] {
			t.Errorf("%s is %v", name, box)
		}
		inked := 0
		for y := range box.Dy() {
			for x := range box.Dx() {
				r, g, b, _ := img.At(x, y).RGBA()
				if r&g&b == 0xffff {
					continue
				}
				inked++
				if x < 8 || y < 8 || x >= box.Dx()-8 || y >= box.Dy()-8 {
					t.Fatalf("%s: ink at the edge (%d,%d)", name, x, y)
				}
			}
		}
		if share := float64(inked) / float64(box.Dx()*box.Dy()); share < 0.01 || share > 0.7 {
			t.Errorf("%s: %.3f of it is ink", name, share)
		}
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		var texts strings.Builder
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s.svg: %v", name, err)
			}
			if c, ok := tok.(xml.CharData); ok {
				texts.Write(c)
			}
		}
		if !strings.Contains(texts.String(), "fry & <co>, 4096-token prompts, 20 samples a task") {
			t.Errorf("%s.svg has %s", name, texts.String())
		}
	}
}

func TestNothingToPlot(t *testing.T) {
	s := &eval.Summary{Rows: []eval.Row{{Policy: "full", Length: 512, Depth: [eval.DepthRanges]float64{-1, -1, -1, -1, -1, -1, -1, -1}}}}
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	if names, err := plot(dir); err != nil || len(names) != 0 {
		t.Errorf("a plot of nothing: %v, %v", names, err)
	}
}

// TestBadSummary checks that a summary that cannot be read is an error with its name.
func TestBadSummary(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "summary.json")
	if _, err := plot(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a summary: %v", err)
	}
	if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := plot(dir); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a broken summary: %v", err)
	}
}
