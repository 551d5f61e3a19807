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
	cell := func(build string, ms int, late time.Duration) Cell {
		c := Cell{Build: build, Shape: "1b", Nodes: 2, Load: Load{Rows: 16}, Delay: time.Millisecond,
			Rate: "1gbit", Mapping: "reduce", Late: late,
			Times: []time.Duration{time.Duration(ms) * time.Millisecond}, bytes: []int64{48 * 125_000}, tokens: 48}
		c.finish(s, 10*time.Millisecond)
		return c
	}
	for late, mark := range map[time.Duration]string{100 * time.Microsecond: "", 101 * time.Microsecond: "*"} {
		got := Table([]Cell{cell("old", 100, 0), cell("now", 50, late)})
		// 33 delays, and 125 kB at 125 MB/s
		want := "| 1b | 2 | 1ms | 1gbit" + mark + " | decode, 16 rows | 160.00 | 320.00 | 2.00 " +
			"| 100.00 | 90.00 | 34.00 | 90 % | 125.0 | reduce | 50.00 | 40.00 | 34.00 | 80 % | 125.0 | reduce |"
		if lines := strings.Split(strings.TrimSpace(got), "\n"); len(lines) != 3 || lines[2] != want ||
			strings.Count(lines[0], "|") != strings.Count(want, "|") {
			t.Errorf("want %q, got\n%s", want, got)
		}
	}
}

// TestMiddle: with an even number of rounds, a cell has the mean of the middle ones and not the slower one.
func TestMiddle(t *testing.T) {
	c := Cell{Load: Load{Prompt: 100}, Rate: "0", Times: []time.Duration{30 * time.Millisecond, 10 * time.Millisecond},
		bytes: []int64{5000, 3000}}
	c.finish(Shape{}, 0)
	if c.Step() != 20*time.Millisecond || c.Bytes != 4000 || c.TokensPerS != 5000 {
		t.Errorf("%v, %d bytes, %v tokens/s", c.Step(), c.Bytes, c.TokensPerS)
	}
}

// TestNetworks: every delay and every rate comes early, and every pair once.
func TestNetworks(t *testing.T) {
	for _, rates := range [][]string{{"1gbit"}, {"1gbit", "10gbit"}, {"0", "1gbit", "10gbit"}} {
		delays := []time.Duration{1, 2, 3}
		all := networks(delays, rates)
		seen, early := map[wireOf]bool{}, map[any]bool{}
		for i, n := range all {
			seen[n] = true
			if i < len(delays) {
				early[n.delay], early[n.rate] = true, true
			}
		}
		if len(seen) != len(delays)*len(rates) || len(all) != len(seen) || len(early) != len(delays)+len(rates) {
			t.Errorf("%v: %v", rates, all)
		}
	}
}

// TestShapeLayers: a shape may have another number of layers.
func TestShapeLayers(t *testing.T) {
	s, err := ShapeOf("8b:8")
	if err != nil || s.Layers != 8 || s.Hidden != Shapes["8b"].Hidden || Shapes["8b"].Layers != 32 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"9b", "8b:", "8b:0", "8b:-1", "8b:129", "8b:x"} {
		if _, err := ShapeOf(bad); err == nil {
			t.Errorf("%q is a shape", bad)
		}
	}
}
