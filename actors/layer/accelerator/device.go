// Package accelerator computes the layers of one rank on a graphics card. Weights, caches and
// activations stay on the card: only tokens, tables of blocks and results cross the bus. Its results
// have the bits of layer.Processor.
package accelerator

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Device is a card as a layer.Device.
type Device struct {
	card   *card.Card
	blocks *card.Blocks
}

// New returns a device with memory for a budget of caches, in blocks of one of the given layouts.
func New(c *card.Card, budget int64, caches ...tensor.KVLayout) (*Device, error) {
	n := int64(0)
	for _, l := range caches {
		n = max(n, memory.MappedBytes(budget, l.BlockBytes()))
	}
	b, err := c.NewBlocks(n)
	if err != nil {
		return nil, err
	}
	return &Device{card: c, blocks: b}, nil
}

// Close frees the memory of the caches. Sockets that use the device have stopped.
func (d *Device) Close() { d.blocks.Close() }

// Card returns the card that the device computes on.
func (d *Device) Card() *card.Card { return d.card }

// Backend implements layer.Device.
func (d *Device) Backend(dims layer.Dims, maxRows int, cache tensor.KVLayout) layer.Backend {
	return newBackend(d, dims, maxRows, cache)
}

// Layer implements layer.Device: it copies the weights to the card and frees those of the host.
func (d *Device) Layer(w *layer.Weights) (layer.Layer, error) {
	defer w.Close()
	l, err := d.layer(w)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("layer %d: %w", w.Number, err)
	}
	return l, nil
}

// Ends implements layer.Device. The embedding stays in its file.
func (d *Device) Ends(e *layer.Ends) (layer.Held, error) {
	defer e.Close()
	switch {
	case e.PerLayer != nil:
		return nil, errors.New("inputs of each layer are not computed on a card")
	case e.Inputs != nil:
		return nil, errors.New("encoders are not computed on a card")
	}
	x := &ends{allocations: allocations{card: d.card}, Ends: *e}
	x.Head = nil
	x.finalNorm = x.vector(e.FinalNorm)
	x.head = matrix(&x.allocations, e.Head)
	if x.err != nil {
		x.Close()
		return nil, fmt.Errorf("output head: %w", x.err)
	}
	return x, nil
}

// MTP implements layer.Device.
func (d *Device) MTP(m *layer.MTP) (layer.Held, error) {
	m.Close()
	return nil, errors.New("multi-token prediction is not computed on a card")
}

// States implements layer.Device: they are in host memory.
func (d *Device) States(hidden int) layer.States { return &layer.HostStates{Hidden: hidden} }

// Arena implements layer.Device. A device has one arena.
func (d *Device) Arena(budget int64) *memory.Arena {
	return memory.NewArenaIn(remote{d.blocks}, budget)
}

// remote is the blocks of a card as memory.Remote.
type remote struct{ *card.Blocks }

// Restore implements memory.Remote.
func (r remote) Restore(l tensor.KVLayout, rows []memory.Saved) {
	number := func(block []byte) uint32 { return uint32(r.Offset(block) / int64(l.BlockBytes())) }
	saved := make([]launch.SavedRow, len(rows))
	for i, s := range rows {
		saved[i] = launch.SavedRow{Block: number(s.Block), Slot: uint32(s.Slot), From: number(s.Rows), Row: uint32(s.Row)}
	}
	r.Blocks.Restore(l, saved)
}

// Prompt implements layer.Device.
func (d *Device) Prompt(s *kvcache.Store, seen *kvcache.Observation, score tensor.Score) layer.Cache {
	return layer.PromptCache{Store: s, Seen: seen, Score: score}
}

// Owned implements layer.Device.
func (d *Device) Owned(s *kvcache.Store, score tensor.Score, ropes kvcache.Ropes) layer.Cache {
	return layer.OwnedCache{Store: s, Score: score, Ropes: ropes}
}
