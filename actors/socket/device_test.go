package socket

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// boxed is a device whose handles only its own backend can open. A socket that read the weights
// itself, or passed them to another backend, would panic.
type boxed struct {
	layer.Host
	open, runs, whole *atomic.Int64 // open handles, calls of Run, whole rows of logits
}

type (
	box struct {
		layer.Held
		of boxed
	}
	boxedLayer struct {
		layer.Layer
		of boxed
	}
	boxedBackend struct {
		*layer.Processor
		of boxed
	}
)

func newBoxed(p *tensor.Pool) boxed {
	return boxed{layer.Host{Pool: p}, new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)}
}

func (d boxed) Backend(dims layer.Dims, maxRows int, cache tensor.KVLayout) layer.Backend {
	return boxedBackend{layer.NewProcessor(dims, maxRows, cache, d.Pool), d}
}

func (d boxed) Layer(w *layer.Weights) (layer.Layer, error) {
	d.open.Add(1)
	return boxedLayer{w, d}, nil
}

func (d boxed) Ends(e *layer.Ends) (layer.Held, error) {
	d.open.Add(1)
	return box{e, d}, nil
}

func (d boxed) MTP(m *layer.MTP) (layer.Held, error) {
	d.open.Add(1)
	return box{m, d}, nil
}

func (b box) Close() {
	b.of.open.Add(-1)
	b.Held.Close()
}

func (l boxedLayer) Close() {
	l.of.open.Add(-1)
	l.Layer.Close()
}

func (b boxedBackend) Run(runs []layer.LayerRun, between func() bool) {
	b.of.runs.Add(1)
	opened := make([]layer.LayerRun, len(runs))
	for i, r := range runs {
		opened[i] = layer.LayerRun{Layer: r.Layer.(boxedLayer).Layer, Ops: r.Ops}
	}
	b.Processor.Run(opened, between)
}

func (b boxedBackend) Embed(e layer.Held, row int, tokens []uint32, checked bool) error {
	return b.Processor.Embed(e.(box).Held, row, tokens, checked)
}

func (b boxedBackend) Hidden(e layer.Held, row int) []float32 {
	return b.Processor.Hidden(e.(box).Held, row)
}

func (b boxedBackend) Logits(e layer.Held, rows []layer.LogitRow) {
	b.Processor.Logits(e.(box).Held, rows)
	for _, r := range rows {
		if r.Whole {
			b.of.whole.Add(1)
		}
	}
}

// TestDevice checks that a socket computes with the configured device, never reads its weights and
// closes them all. A single socket must give all layers of a step in one call.
func TestDevice(t *testing.T) {
	for _, m := range topology.Mappings {
		for _, sockets := range []int{1, 3} {
			t.Run(fmt.Sprint(m, sockets), func(t *testing.T) {
				want, got := mixed("full"), mixed("full")
				newRig(t, rigConfig{dir: goldenDir, sockets: sockets, mapping: m}).generate(200, want...)
				var devices []boxed
				steps := int64(0)
				t.Run("boxed", func(t *testing.T) {
					r := newRig(t, rigConfig{dir: goldenDir, sockets: sockets, mapping: m, device: func(p *tensor.Pool) layer.Device {
						devices = append(devices, newBoxed(p))
						return devices[len(devices)-1]
					}})
					r.generate(200, got...)
					steps = int64(r.step)
				})
				if !bytes.Equal(bits(t, got), bits(t, want)) {
					t.Error("results differ from those of the host")
				}
				for rank, d := range devices {
					if d.open.Load() != 0 {
						t.Errorf("rank %d: %d handles were not closed", rank, d.open.Load())
					}
					if runs := d.runs.Load(); sockets == 1 && runs != steps || sockets > 1 && runs <= 2*steps {
						t.Errorf("rank %d: %d calls of Run in %d steps", rank, runs, steps)
					}
				}
			})
		}
	}
}

// TestWholeRows checks that whole rows of logits come to the host only for requests that read them.
func TestWholeRows(t *testing.T) {
	for _, c := range []struct {
		temperature float32
		logprobs    int
		whole       bool
	}{{0, -1, false}, {0, 2, true}, {0.8, -1, true}} {
		var d boxed
		r := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, device: func(p *tensor.Pool) layer.Device {
			d = newBoxed(p)
			return d
		}})
		q := &request{prompt: []int32{5, 6, 7}, max: 4, params: sampler.Default()}
		q.params.Temperature, q.params.Logprobs = c.temperature, c.logprobs
		r.generate(64, q)
		if got := d.whole.Load() > 0; got != c.whole || len(q.scores) == 0 {
			t.Errorf("%+v: %d whole rows, %d results", c, d.whole.Load(), len(q.scores))
		}
	}
}
