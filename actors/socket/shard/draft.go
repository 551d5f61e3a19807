package shard

import (
	"context"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// LoadDraft loads the whole draft model for base, for a placement of one rank: a separate model, or
// with mtp the multi-token-prediction layer, with the embedding and the head of base.
func LoadDraft(ctx context.Context, draft, base *checkpoint.Checkpoint, p topology.Placement, mtp bool, dt tensor.DType,
	o Options) (*Weights, layer.Held, error) {
	sources := []*checkpoint.Checkpoint{draft, base}
	marks := make([]checkpoint.Mark, len(sources))
	for i, ck := range sources {
		var err error
		if marks[i], err = ck.Recheck(ctx); err != nil {
			return nil, nil, err
		}
	}
	l := loader{ctx: ctx, ck: draft, dt: draft.Config.DraftAs(dt), pool: o.Pool, device: o.device(), source: draft.Hash()}
	var w *Weights
	var ends *layer.Ends
	var ahead layer.Held
	if mtp {
		w, ends, ahead = l.mtp(&draft.Config, p, base)
		l.embedding(w, ends, base)
	} else {
		w, ends = l.slices(&draft.Config, p, 0)
		l.embedding(w, ends, draft)
	}
	for i, ck := range sources {
		if l.err == nil {
			l.err = ck.Since(marks[i])
		}
	}
	if l.err != nil {
		w.Close()
		if ahead != nil {
			ahead.Close()
		}
		return nil, nil, l.err
	}
	return w, ahead, nil
}

// mtp loads the multi-token-prediction layer, with the whole head of the model.
func (l *loader) mtp(c *model.Config, p topology.Placement, base *checkpoint.Checkpoint) (*Weights, *layer.Ends, layer.Held) {
	t, me := c.MTP(), cutOf(c, 0, p, 0)
	ends := &layer.Ends{LogitCap: c.LogitCap}
	s := &Weights{Layers: []layer.Layer{l.hold(l.layer(c, c.Layers, &t.Layer, me))}, Ends: ends}
	m := &layer.MTP{Embed: l.norm(t.EmbedNorm, &t.Layer), Hidden: l.norm(t.HiddenNorm, &t.Layer),
		Project: l.matrix(t.Project, 2*c.Hidden, upTo(c.Hidden))}
	ends.FinalNorm = l.norm(t.FinalNorm, &t.Layer)
	l.ck = base
	ends.Head = l.matrix(model.Linear{Weight: c.HeadName()}, c.Hidden, me.vocab)
	if l.err != nil {
		return s, ends, m
	}
	held, err := l.device.MTP(m)
	if err != nil {
		l.err = err
		return s, ends, &layer.MTP{}
	}
	return s, ends, held
}
