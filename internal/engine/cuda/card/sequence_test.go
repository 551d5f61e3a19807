package card

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/native"
)

// A sequence computes the same the first time, when it becomes a graph, as a graph, and after its graph was dropped.
func TestCardSequence(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", emulator.Build(t))
	c, err := Open(0, Options{Fail: func(err error) { panic(err) }})
	if errors.Is(err, native.ErrUnavailable) && os.Getenv("CGO_ENABLED") != "0" {
		t.Skip(err) // linked dynamically: run with CGO_ENABLED=0
	}
	if err != nil {
		t.Fatal(err)
	}
	const n = 2 * maxRepeated
	x, err := c.Alloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	y, err := c.Alloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	ones := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(ones[4*i:], math.Float32bits(1))
	}
	c.Upload(x, make([]byte, 4*n))
	c.Upload(y, ones)
	s, want := c.Sequence(), [n]float32{}
	add := func(cols int) {
		for range 2 {
			s.Do(launch.Add{X: x, Y: y, Rows: 1, Cols: cols})
			for i := range cols {
				want[i]++
			}
		}
		s.Start()
	}
	for range 4 {
		add(n)
	}
	if len(s.known) != 1 || s.known[0].graph == nil || len(s.known[0].ops) != 2 {
		t.Errorf("after four equal sequences: %+v", s.known)
	}
	for i := range n { // the first is dropped
		add(i)
		add(i)
		add(i)
	}
	add(n)
	got := make([]byte, 4*n)
	c.Download(got, x)
	for i, w := range want {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:])); v != w {
			t.Fatalf("number %d is %g, want %g", i, v, w)
		}
	}
	if len(s.known) != maxRepeated {
		t.Errorf("%d sequences are known", len(s.known))
	}
	s.Close()
}
