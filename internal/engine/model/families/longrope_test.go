package families

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// phi is a config of a model with 6 rotated pairs per head and the given changes.
func phi(c change) []byte {
	all := change{"architectures": []string{"Phi3ForCausalLM"}, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64,
		"rope_scaling": change{"type": rotary.LongRope, "short_factor": ramp(6, 1), "long_factor": ramp(6, 2)}}
	maps.Copy(all, c)
	return with(all)
}

func ramp(n int, first float64) (list []float64) {
	for i := range n {
		list = append(list, first+float64(i)/4)
	}
	return list
}

// scaled is rope_scaling with changes.
func scaled(c change) change {
	all := change{"type": rotary.LongRope, "short_factor": ramp(6, 1), "long_factor": ramp(6, 2)}
	for k, v := range c {
		if all[k] = v; v == remove {
			delete(all, k)
		}
	}
	return change{"rope_scaling": all}
}

func TestLongRopeConfig(t *testing.T) {
	amplitude := func(factor, original float64) float64 { return math.Sqrt(1 + math.Log(factor)/math.Log(original)) }
	inside := func(c change) change {
		return change{"original_max_position_embeddings": remove, "rope_scaling": scaled(c)["rope_scaling"]}
	}
	both := scaled(change{"original_max_position_embeddings": 16})
	for name, test := range map[string]struct {
		c         change
		original  int
		amplitude float64
	}{
		"as in Phi-4-mini":          {nil, 64, amplitude(4, 64)},
		"su":                        {scaled(change{"type": "su"}), 64, amplitude(4, 64)},
		"yarn":                      {scaled(change{"type": "yarn"}), 64, amplitude(4, 64)},
		"rope_type":                 {scaled(change{"type": remove, "rope_type": rotary.LongRope}), 64, amplitude(4, 64)},
		"factor":                    {scaled(change{"factor": 32}), 64, amplitude(32, 64)},
		"small factor":              {scaled(change{"factor": 0.5}), 64, 1},
		"attention_factor":          {scaled(change{"attention_factor": 1.19}), 64, 1.19},
		"original inside":           {inside(change{"original_max_position_embeddings": 16}), 16, amplitude(16, 16)},
		"original outside first":    {both, 64, amplitude(4, 64)},
		"original as the class has": {inside(nil), 4096, 1},
		"original of one token":     {change{"original_max_position_embeddings": 1}, 1, 1},
		"mscale without effect":     {scaled(change{"attention_factor": 1.5, "long_mscale": 1.5}), 64, 1.5},
		"rope_parameters": {change{"rope_scaling": remove, "rope_parameters": scaled(change{"rope_theta": 5e5})["rope_scaling"]},
			64, amplitude(4, 64)},
		"window longer than everyone": {change{"sliding_window": 262144}, 64, amplitude(4, 64)},
	} {
		c, err := model.ParseConfig("d", phi(test.c), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := c.Rope
		if r.Type != rotary.LongRope || r.OriginalMax != test.original || math.Abs(r.Amplitude-test.amplitude) > 1e-6 ||
			r.Beyond != (256 > test.original) ||
			!slices.Equal(r.Short, ramp(6, 1)) || !slices.Equal(r.Long, ramp(6, 2)) || c.Rotated != 12 || c.MaxPositions != 256 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Serve chooses the list by the context: up to the original one the short factors, which is also
// the border of transformers.
func TestServe(t *testing.T) {
	c, err := model.ParseConfig("d", phi(nil), nil)
	if err != nil || !c.ByContext() {
		t.Fatalf("%+v, %v", c.Rope, err)
	}
	plain := rotary.Rope{Theta: 5e5}.InvFreq(12)
	for context, list := range map[int][]float64{0: ramp(6, 2), 256: ramp(6, 2), 65: ramp(6, 2), 64: ramp(6, 1), 2: ramp(6, 1)} {
		served := c
		served.Serve(context)
		got := served.InvFreq()
		for i := range got {
			want := 0. // does not rotate
			if i < len(list) {
				want = plain[i] / list[i]
			}
			if got[i] != want {
				t.Errorf("context %d: frequency %d is %g, want %g", context, i, got[i], want)
			}
		}
	}
	other, err := model.ParseConfig("d", with(nil), nil)
	if err != nil || other.ByContext() {
		t.Errorf("Llama: %+v, %v", other.Rope, err)
	}
	if other.Serve(2); other.Rope.Beyond {
		t.Error("Llama has a choice")
	}
}

func TestLongRopeRefused(t *testing.T) {
	list := func(key string, v any) change { return scaled(change{key: v}) }
	for _, test := range []struct {
		c    change
		kind error
		want string
	}{
		{list("short_factor", remove), model.ErrMissing, `"rope_scaling.short_factor": missing`},
		{list("long_factor", remove), model.ErrMissing, `"rope_scaling.long_factor": missing`},
		{list("long_factor", ramp(5, 1)), model.ErrFormat, `"rope_scaling.long_factor": 5 numbers for the 6 pairs`},
		{list("short_factor", ramp(8, 1)), model.ErrFormat, `"rope_scaling.short_factor": 8 numbers for the 6 pairs`},
		{list("long_factor", []float64{}), model.ErrFormat, `"rope_scaling.long_factor": 0 numbers`},
		{list("long_factor", 8), model.ErrFormat, `"rope_scaling.long_factor"`},
		{list("long_factor", []any{1, 1, "NaN", 1, 1, 1}), model.ErrFormat, `"rope_scaling.long_factor"`},
		{list("long_factor", []float64{1, 1, 0, 1, 1, 1}), model.ErrOutOfRange, "element 2, 0,"},
		{list("short_factor", []float64{1, -1, 1, 1, 1, 1}), model.ErrOutOfRange, "element 1, -1,"},
		{list("short_factor", []float64{1, 1, 1, 1, 1, 1e7}), model.ErrOutOfRange, "element 5, 1e+07,"},
		{list("factor", 0), model.ErrOutOfRange, `"rope_scaling.factor": 0`},
		{list("factor", 1e9), model.ErrOutOfRange, `"rope_scaling.factor": 1e+09`},
		{list("attention_factor", 0), model.ErrOutOfRange, `"rope_scaling.attention_factor": 0`},
		{list("long_mscale", 1.25), model.ErrUnsupported, `"rope_scaling.long_mscale": 1.25`},
		{list("short_mscale", 1.25), model.ErrUnsupported, `"rope_scaling.short_mscale": 1.25`},
		{list("type", "dynamic"), model.ErrUnsupported, `"rope_scaling.type": "dynamic"`},
		{list("type", "default"), model.ErrUnsupported, `"rope_scaling.`},
		{list("partial_rotary_factor", 0.5), model.ErrFormat, "differs from the 0.75 outside"},
		{change{"original_max_position_embeddings": 0}, model.ErrOutOfRange, `"original_max_position_embeddings": 0`},
		{change{"partial_rotary_factor": 0.1}, model.ErrUnsupported, `"partial_rotary_factor": 0.1`},
		{change{"architectures": []string{"LlamaForCausalLM"}, "partial_rotary_factor": 1}, model.ErrUnsupported, `"longrope" is not supported`},
	} {
		if _, err := model.ParseConfig("d", phi(test.c), nil); !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v; want %s", test.c, err, test.want)
		}
	}
}
