package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	loads "github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// callbacks are the functions that the batcher calls. They have a type of their own, so that a Coordinator and a
// Local, which embed a core, do not export them.
type callbacks struct{ c *core }

// StartStep implements batcher.Stepper.
func (k callbacks) StartStep(p *plan.Plan, done func(batcher.StepDone, error)) {
	k.c.steps.Go(func() {
		d, err := k.c.stepper.Run(k.c.ctx, p)
		for rank, used := range d.Used {
			k.c.noteUsed(k.c.nodeOf(p.Epoch, rank), used)
		}
		done(d, err)
	})
}

// Release implements batcher.Stepper.
func (k callbacks) Release(epoch uint32, keep []plan.Keep, seqs, blocks []uint64) {
	g := k.c.group()
	if g == nil || g.Placement.Epoch != epoch {
		return
	}
	r := plan.EncodeRelease(epoch, keep, seqs, blocks)
	for i, h := range g.Handles {
		k.c.steps.Go(func() {
			ctx, cancel := context.WithTimeout(k.c.ctx, coordinator.CallTimeout)
			defer cancel()
			reply, err := h.Release(ctx, r)
			if err != nil {
				k.c.serve.Logger.Debug("a release was lost; the next step repeats it", "error", err)
				return
			}
			k.c.noteUsed(g.Nodes[i].ID, reply.KvUsedBytes)
		})
	}
}

// Disk implements batcher.Stepper.
func (k callbacks) Disk(epoch uint32, d batcher.Disk, done func(int)) {
	g := k.c.group()
	if g == nil || g.Placement.Epoch != epoch {
		done(0)
		return
	}
	r := coordinator.PrefixRequest(epoch, d)
	k.c.steps.Go(func() {
		ctx, cancel := context.WithTimeout(k.c.ctx, time.Duration(d.Millis)*time.Millisecond)
		defer cancel()
		done(k.c.requestDisks(ctx, g, r))
	})
}

// Saved implements batcher.Stepper.
func (k callbacks) Saved(o saved.Order, done func(saved.Done)) {
	g := k.c.group()
	if g == nil || g.Placement.Epoch != o.Epoch {
		done(saved.Done{Number: o.Number, Err: fmt.Sprintf("cluster: epoch %d is over", o.Epoch)})
		return
	}
	k.c.steps.Go(func() {
		d := g.Saved(k.c.ctx, o)
		switch {
		case d.Err == "":
		case o.Do == saved.Load:
			k.c.serve.Logger.Warn("cannot read the cache of a session from its file; the turn computes all tokens", "error", d.Err)
		case o.Do == saved.Write:
			k.c.serve.Logger.Info("cannot write the cache of a session to a file", "error", d.Err)
		default:
			k.c.serve.Logger.Debug("a node did not answer a lookup or removal of a session's cache", "error", d.Err)
		}
		done(d)
	})
}

// Adapt implements batcher.Stepper.
func (k callbacks) Adapt(epoch uint32, l loads.Load, done func(error)) {
	g := k.c.group()
	folder, known := k.c.adapters.Folder(l.ID)
	switch {
	case g == nil || g.Placement.Epoch != epoch:
		done(fmt.Errorf("%w: epoch %d, for which adapter %v was requested, is over", coordinator.ErrNoPlacement, epoch, l.ID))
		return
	case !known:
		done(fmt.Errorf("cluster: this coordinator has no files of adapter %v: load the adapter again", l.ID))
		return
	}
	k.c.steps.Go(func() { done(g.LoadAdapter(k.c.ctx, l, folder)) })
}

// Broken implements batcher.Stepper.
func (k callbacks) Broken(b batcher.Broken) {
	k.c.director.Broken(b.Epoch, b.Reason)
}
