package checkpoint_test

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// The two lists of a GGUF file are checked like those of a config; errors name tensors and keys.
func TestGGUFLongRopeRefused(t *testing.T) {
	hub := open(t, "../model/testdata/phi3")
	const short, long = "rope_factors_short.weight", "rope_factors_long.weight"
	const attention, original = "phi3.rope.scaling.attn_factor", "phi3.rope.scaling.original_context_length"
	nan := float32(math.NaN())
	list := func(g *modeltest.GGUF, name string, v ...float32) {
		g.Add(name, gguf.F32, []int{len(v)}, modeltest.Quantize(gguf.F32, v))
	}
	ones := func(g *modeltest.GGUF, name string) { list(g, name, 1, 1, 1, 1, 1, 1, 1, 1) }
	both := func(g *modeltest.GGUF) {
		ones(g, short)
		list(g, long, 1, 2, 3, 4, 5, 6, 7, 8)
	}
	for name, test := range map[string]struct {
		damage func(*modeltest.GGUF)
		kind   error // nil: accepted
		want   string
	}{
		"both":     {both, nil, ""},
		"no long":  {func(g *modeltest.GGUF) { ones(g, short) }, model.ErrMissing, long},
		"no short": {func(g *modeltest.GGUF) { ones(g, long) }, model.ErrMissing, short},
		"too few": {func(g *modeltest.GGUF) { ones(g, short); list(g, long, 1, 2, 3, 4, 5, 6, 7) },
			model.ErrFormat, long + `": 7 numbers for the 8 pairs`},
		"zero": {func(g *modeltest.GGUF) { list(g, short, 1, 0, 1, 1, 1, 1, 1, 1); list(g, long, 1, 2, 3, 4, 5, 6, 7, 8) },
			model.ErrOutOfRange, short + `": element 1, 0,`},
		"NaN": {func(g *modeltest.GGUF) { ones(g, short); list(g, long, nan, 2, 3, 4, 5, 6, 7, 8) },
			model.ErrOutOfRange, long + `": element 0, NaN,`},
		"a matrix": {func(g *modeltest.GGUF) {
			g.Add(long, gguf.F32, []int{2, 4}, modeltest.Quantize(gguf.F32, make([]float32, 8)))
		}, model.ErrMismatch, long + `": is`},
		"no attn_factor": {func(g *modeltest.GGUF) {
			both(g)
			g.Unset(attention)
		}, model.ErrMissing, attention},
		"no original context": {func(g *modeltest.GGUF) {
			both(g)
			g.Unset(original)
		}, model.ErrMissing, original},
		"attn_factor of zero": {func(g *modeltest.GGUF) {
			both(g)
			g.Unset(attention)
			g.Set(attention, float32(0))
		}, model.ErrOutOfRange, attention},
		"original context of zero": {func(g *modeltest.GGUF) {
			both(g)
			g.Unset(original)
			g.Set(original, uint32(0))
		}, model.ErrFormat, original},
		"linear too": {func(g *modeltest.GGUF) {
			both(g)
			g.Set("phi3.rope.scaling.type", "linear")
			g.Set("phi3.rope.scaling.factor", float32(2))
		}, model.ErrUnsupported, "phi3.rope.scaling.type"},
	} {
		t.Run(name, func(t *testing.T) {
			g := modeltest.Convert(hub, always(gguf.F32))
			g.Set(attention, float32(1.5))
			g.Set(original, uint32(64))
			test.damage(g)
			path := filepath.Join(t.TempDir(), "m.gguf")
			put(t, path, g.Bytes())
			c, err := checkpoint.Open(path)
			if c != nil {
				defer c.Close()
			}
			switch {
			case test.kind != nil:
				if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v; want %s", err, test.want)
				}
			case err != nil:
				t.Error(err)
			case !c.Config.Rope.Beyond || c.Config.Rope.Amplitude != 1.5 || c.Config.Rope.OriginalMax != 64 ||
				c.Config.Rope.Long[7] != 8 || len(c.Extra()) > 0:
				t.Errorf("%+v, extra %v", c.Config.Rope, c.Extra())
			}
		})
	}
}
