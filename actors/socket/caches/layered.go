package caches

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// openLayered prepares a sequence whose prompt is read layer by layer: everything except its caches.
func (e *Epoch) openLayered(s *Sequence, o *plan.Open) (err error) {
	s.PassRows = o.PassRows
	kept := layered.KeptRows(e.Geometry, o.Policy, o.Read)
	s.Streams, err = layered.NewStreams(len(o.Prefix), o.PassRows, o.Read, kept, func(first int) (*layered.Residual, error) {
		if o.InFile {
			return layered.NewInFile(e.createFile, e.Hidden, o.PassRows, len(e.Place.Slices), first, o.Read), nil
		}
		return layered.NewResidual(e.Arena, e.Geometry.Layout.BlockBytes(), e.Hidden, o.PassRows, len(e.Place.Slices), first, o.Read)
	})
	return err
}

// createFile creates a file for the residual stream of a prompt.
func (c *Caches) createFile(size int64) (layered.File, error) {
	if c.spiller == nil {
		return nil, errors.New("socket: this socket has no disk for rows of sequences")
	}
	file, err := c.spiller.scratch.Create(size)
	if err != nil {
		return nil, err
	}
	return file, nil
}

// enter lets layers read a prompt from a position on.
func (e *Epoch) enter(s *Sequence, layers topology.Range, from int) (err error) {
	if s.PromptShard == nil {
		return nil
	}
	s.PromptShard.Enter(tensor.Span(layers), from)
	g := layered.Only(e.Geometry, layers.Lo, layers.Hi)
	s.Stats, err = kvcache.NewObservation(e.Arena, g, e.Place.Slices[e.Rank].KVHeads, s.Policy.Needs, s.Prompt)
	return err
}

// ReleaseLayers frees the rows and statistics of layers that have been handed over.
func (s *Sequence) ReleaseLayers(layers topology.Range) {
	s.Stats.Release()
	s.Stats = nil
	if s.PromptShard != nil {
		s.PromptShard.Enter(tensor.Span{Lo: layers.Hi, Hi: layers.Hi}, s.PromptShard.Tokens())
	}
}
