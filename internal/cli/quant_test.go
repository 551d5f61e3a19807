package cli

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/models"
)

// TestQuantWithoutAValue checks --quant with no value, auto, a type and an empty value, in any
// position.
func TestQuantWithoutAValue(t *testing.T) {
	for _, c := range []struct {
		args []string
		want models.Quant
	}{
		{[]string{"up"}, ""},
		{[]string{"up", "--quant"}, models.QuantAuto},
		{[]string{"up", "--quant", "--nodes", "2"}, models.QuantAuto},
		{[]string{"up", "--quant", "-n", "2"}, models.QuantAuto},
		{[]string{"up", "--quant=auto"}, models.QuantAuto},
		{[]string{"up", "--quant", "q8_0", "--nodes", "2"}, "q8_0"},
		{[]string{"up", "--quant=iq4_nl"}, "iq4_nl"},
		{[]string{"up", "--quant="}, ""},
		{[]string{"coordinator", "--quant", "f16"}, "f16"},
		{[]string{"coordinator", "--quant"}, models.QuantAuto},
	} {
		got, err := parsed(t, c.args...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if q := (map[bool]models.Quant{true: got.Up.Quant, false: got.Coordinator.Quant})[c.args[0] == "up"]; q != c.want {
			t.Errorf("%q gives %q, want %q", c.args, q, c.want)
		}
	}
	got, err := parsed(t, "run", "fry", "--quant", "--nodes", "2", "a text")
	if err != nil || got.Run.Quant != models.QuantAuto || !slices.Equal(got.Run.words(), []string{"fry", "a text"}) {
		t.Errorf("run: %q of %q: %v", got.Run.Quant, got.Run.words(), err)
	}
}
