package compare

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// TestShape: the product opens a generated checkpoint.
func TestShape(t *testing.T) {
	s, err := ShapeOf("tiny")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Config.Layers != s.Layers || c.Config.Vocab != s.Vocab {
		t.Errorf("%+v", c.Config)
	}
}

// TestStepTime counts only the tokens that arrive while all sequences run.
func TestStepTime(t *testing.T) {
	at := func(ms, tokens int) arrival {
		return arrival{time.Time{}.Add(time.Hour + time.Duration(ms)*time.Millisecond), tokens}
	}
	got, err := stepTime([][]arrival{
		{at(0, 1), at(10, 1), at(20, 2), at(40, 2), at(60, 2)}, // the last two after the other has ended
		{at(10, 1), at(20, 2), at(30, 2)},
	})
	// From 10 to 30 ms, two sequences have 6 tokens: 3 each in 20 ms.
	if err != nil || got != 20*time.Millisecond/3 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := stepTime([][]arrival{{at(0, 1), at(1, 1)}, {at(5, 1), at(6, 1)}}); err == nil {
		t.Error("sequences that never ran together have a step time")
	}
}

// TestTable: waiting is the time beyond the reference, and the floor counts delays and bytes.
func TestTable(t *testing.T) {
	s, err := ShapeOf("1b")
	if err != nil {
		t.Fatal(err)
	}
	cell := func(build string, ms int) Cell {
		c := Cell{Build: build, Shape: "1b", Nodes: 2, Load: Load{Rows: 16}, Start: time.Millisecond, Delay: time.Millisecond, Rate: "1gbit", Mapping: "reduce",
			Times: []time.Duration{time.Duration(ms) * time.Millisecond}, bytes: []int64{48 * 125_000}, tokens: 48}
		c.finish(s, 10*time.Millisecond)
		return c
	}
	got := Table([]Cell{cell("old", 100), cell("now", 50)})
	for _, want := range []string{
		"| 1b | 2 | 1ms | 1ms | 1gbit | decode, 16 rows | old | reduce | 160.00 | 100.00 | 90.00 | 34.00 | 125.0 | 0 |  |", // 33 delays, and 125 kB at 125 MB/s
		"| now | reduce | 320.00 | 50.00 | 40.00 | 34.00 | 125.0 | 0 | 2.00 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no row %q in\n%s", want, got)
		}
	}
}
