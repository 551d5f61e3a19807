package socket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// progress is the progress of a load, in bytes of the slices.
type progress struct{ done, total atomic.Int64 }

func (a *Actor) load(c actor.Context, m *Load) {
	p, rank, err := placementOf(m.Request, &a.Config.Checkpoint.Config)
	var effects []machine.Effect
	if err == nil {
		effects, err = a.machine.Load(p.Epoch, m.Request.Coordinator, limitsOf(m.Request, &a.Config, rank))
	}
	if err != nil {
		m.Reply(nil, err)
		return
	}
	a.teardown(c, effects)
	if part := m.Request.Memory; part != nil { // the node has several models
		a.caches.Arena.SetBudget(min(part.KvBytes, a.Config.KVBudget))
		if a.adaptable = 0; part.AdapterParts > 0 {
			a.adaptable = a.Config.AdapterBudget / int64(part.AdapterParts)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	self, root, cfg, held := c.Self(), c.ActorSystem().Root, a.Config, a.caches
	read := &progress{}
	a.read = read
	kept := a.machine.Kept()
	a.exec.Submit(func() {
		began, whole := time.Now(), held.KeepOnly(kept)
		e, err := build(ctx, cfg, read, held, p, rank, m.Request)
		root.Send(self, &loaded{number: p.Epoch, epoch: e, err: err, whole: whole, inFiles: held.BlocksInFiles(), took: time.Since(began),
			reply: m.Reply})
	})
}

// limitsOf returns the limits of a load whose placement has been checked.
func limitsOf(r *proto.LoadRequest, cfg *Config, rank int) machine.Limits {
	c := &cfg.Checkpoint.Config
	l := machine.Limits{Rank: rank, Ranks: len(r.Placement.Slices), Vocab: c.IDs(), Positions: cmp.Or(int(r.Context), c.MaxPositions),
		Rows: int(r.MaxStepTokens), Layers: c.CacheLayers(), Begins: c.CacheBegins(), Later: c.SwiftKV.Layers,
		Parse: cfg.ParsePolicy, Across: c.SharesCaches(), Whole: c.NonCausal, Headless: c.Headless, Recurrent: c.RecurrentLayers() > 0,
		Layered: shard.Layered(c)}
	if kv, err := tensor.ParseDType(r.KvType); err == nil { // build reports the error
		l.Layout = c.CacheLayout(kv)
	}
	return l
}

func build(ctx context.Context, cfg Config, read *progress, held *caches.Caches, p topology.Placement, rank int,
	r *proto.LoadRequest) (*step.Epoch, error) {
	if h := cfg.Checkpoint.Hash(); r.ModelHash != h {
		return nil, fmt.Errorf("socket: the cluster serves model %.12s, this node has %.12s in %s", r.ModelHash, h, cfg.Checkpoint.Dir)
	}
	dt, kv, err := typesOf(r, &cfg.Checkpoint.Config)
	if err != nil {
		return nil, err
	}
	served := cfg.Checkpoint.Config
	served.Serve(int(r.Context))
	cfg.use(0, false)
	w, err := shard.Load(ctx, cfg.Checkpoint, p, rank, dt,
		shard.Options{Pool: cfg.Pool, Device: cfg.device(), Cache: cfg.WeightsCache, Shared: cfg.Shared, Progress: func(done, total int64) {
			read.done.Store(done)
			read.total.Store(total)
			if cfg.OnProgress != nil {
				cfg.OnProgress(done, total)
			}
		}})
	if err != nil {
		return nil, unusable(err)
	}
	if cfg.Shared != nil {
		huge, all := cfg.Shared.Huge()
		cfg.Logger.Debug("weights shared by the nodes of this machine", "huge_pages", huge, "of", all)
	}
	if cfg.Draft != nil && held.Drafter == nil {
		if held.Drafter, err = draft.Load(ctx, cfg.Draft, cfg.Checkpoint, int(r.Context), dt, kv,
			shard.Options{Pool: cfg.Pool, Device: cfg.device()}); err != nil {
			w.Close()
			return nil, unusable(err)
		}
	}
	c := &caches.Epoch{Caches: held, Adapters: map[lora.ID]*lowrank.Adapter{}, Place: p, Rank: rank,
		Geometry: shard.GeometryOf(&cfg.Checkpoint.Config, kv), Hidden: served.Hidden, Score: cfg.Checkpoint.Config.Score(),
		Grammars: cfg.Grammars, Parallel: cfg.Pool.Run}
	return step.NewEpoch(c,
		step.Options{Config: served, Weights: w, Type: dt, Device: cfg.device(), Pool: cfg.Pool, MaxRows: int(r.MaxStepTokens)}), nil
}

// unusable marks the error of a weights file that has changed. Other nodes may have an intact copy.
func unusable(err error) error {
	if errors.Is(err, model.ErrChanged) {
		return fmt.Errorf("%w: %w", topology.ErrWeights, err)
	}
	return err
}

func (a *Actor) loaded(c actor.Context, m *loaded) {
	if err := a.machine.Loaded(m.number, m.err == nil); err != nil || m.err != nil {
		if m.epoch != nil {
			m.epoch.Close(nil)
		}
		m.reply(nil, errors.Join(m.err, err))
		return
	}
	a.epoch, a.term = m.epoch, a.exec.NewTerm()
	a.epoch.Await = a.term.Await
	a.caches.Begin(m.epoch.Epoch)
	layers := m.epoch.Weights.Layers
	a.layers = make([]*actor.PID, len(layers))
	for i := len(layers) - 1; i >= 0; i-- {
		l := &layer.Actor{Layers: layers[i:], Next: a.layers[i+1:], Term: a.term}
		a.layers[i] = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return l }, actor.WithDispatcher(layer.Dispatcher)))
	}
	a.Config.Logger.Info("slices loaded", "epoch", m.number, "rank", m.epoch.Rank, "sockets", len(m.epoch.Place.Slices),
		"weights_bytes", m.epoch.Weights.Bytes(), "took", m.took.Round(time.Millisecond))
	if f, q := m.epoch.Weights.Fidelity, a.Config.Checkpoint.Config.Quantized; q != nil && f.Read {
		a.Config.Logger.Info("weights of a quantized form", "form", q.Method, "held_as", f.Type, "blocks_as_stored",
			fmt.Sprintf("%.1f%%", 100*f.Kept), "relative_error", fmt.Sprintf("%.2g", f.Error))
	}
	a.machine.Whole(m.whole)
	kept := a.machine.Held()
	for _, h := range kept {
		if !h.Replica {
			h.Spilled = uint32(m.inFiles[h.Seq])
		}
	}
	m.reply(&proto.LoadReply{WeightBytes: m.epoch.Weights.Bytes() + m.epoch.Drafter.Bytes(), KvBudgetBytes: a.caches.Arena.Budget(),
		Millis: uint32(m.took.Milliseconds()), Held: kept,
		PrefixDisk: a.caches.HasPrefixDisk(), ScratchBytes: a.caches.ScratchLimit(), AdapterBudgetBytes: a.adaptable}, nil)
}
