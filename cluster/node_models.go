package cluster

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/weights"
)

// nodeModel is a model of a node, with the inputs of its socket.
type nodeModel struct {
	checkpoint *checkpoint.Checkpoint
	cache      *weights.Cache // nil: the checkpoint is local
	draftWord  string
	draft      *draft.Config
	disk       *tier.Store   // of the prefix cache; nil: none
	scratch    *tier.Scratch // nil: none
}

// openNodeModels opens the checkpoints of a node, if they are on its machine. The caller closes them,
// also after an error.
func openNodeModels(cfg *NodeConfig) (out []*nodeModel, err error) {
	if cfg.Model == "" {
		return nil, nil
	}
	for _, m := range append([]NodeModel{{cfg.Model, cfg.SwiftKV, cfg.Draft}}, cfg.Others...) {
		ck, err := checkpoint.OpenSwiftKV(m.Model, m.SwiftKV)
		if err != nil {
			return out, err
		}
		logRechecks(ck, cfg.Logger)
		out = append(out, &nodeModel{checkpoint: ck, draftWord: m.Draft})
	}
	return out, nil
}

// fetchNodeModels opens the models of the cluster, whose weights come from other processes. The caller
// closes them, also after an error.
func fetchNodeModels(ctx context.Context, cfg *NodeConfig, b *bus.Bus) (out []*nodeModel, err error) {
	hashes, err := weights.Models(ctx, weights.From(b.RPC, b.WeightServers, ""))
	if err != nil {
		return nil, err
	}
	for i, hash := range hashes {
		m := &nodeModel{}
		if i == 0 {
			m.draftWord = cfg.Draft
		}
		if m.checkpoint, m.cache, err = weights.Open(ctx, weights.From(b.RPC, b.WeightServers, hash), cfg.Hub, cfg.WeightsCache,
			cfg.WeightsCacheSize, cfg.Logger); err != nil {
			return out, err
		}
		out = append(out, m)
	}
	return out, nil
}

func closeNodeModels(all []*nodeModel) {
	for _, m := range all {
		node.CloseDraft(m.draft, m.checkpoint)
		if m.disk != nil {
			_ = m.disk.Close()
		}
		if m.scratch != nil {
			m.scratch.Close()
		}
		_ = m.checkpoint.Close()
		if m.cache != nil {
			_ = m.cache.Close()
		}
	}
}

// openDisks opens the folders of a model's socket. Several models have folders of their own, by the
// hash of the model, and equal parts of the sizes.
func (m *nodeModel) openDisks(cfg *NodeConfig, sc *socket.Config, number, models int) (err error) {
	at := func(dir string) string {
		if number == 0 {
			return dir
		}
		return filepath.Join(dir, m.checkpoint.Hash()[:12])
	}
	if cfg.WeightsCache != "" {
		sc.WeightsCache = &shard.Cache{Dir: cfg.WeightsCache, Limit: cfg.WeightsCacheSize, Logger: cfg.Logger}
	}
	if cfg.PrefixDisk != "" {
		if m.disk, err = tier.Open(at(cfg.PrefixDisk), cfg.PrefixDiskSize/int64(models), cfg.Logger); err != nil {
			return err
		}
		sc.PrefixDisk = m.disk
	}
	if cfg.KVDisk != "" {
		if m.scratch, err = tier.OpenScratch(at(cfg.KVDisk), cfg.KVDiskSize/int64(models), cfg.Logger); err != nil {
			return err
		}
		sc.Scratch = m.scratch
	}
	return nil
}

// openAdapterFiles opens the folder with the files of LoRA adapters, of all models.
func openAdapterFiles(cfg *NodeConfig) (*lora.Store, error) {
	dir := "" // temporary
	if cfg.WeightsCache != "" {
		dir = filepath.Join(cfg.WeightsCache, "adapters")
	}
	s, err := lora.OpenStore(dir, cfg.WeightsCacheSize)
	if err != nil { // such as a folder that is read-only
		cfg.Logger.Warn("LoRA adapters are kept in a temporary folder", "folder", dir, "error", err)
		return lora.OpenStore("", 0)
	}
	return s, nil
}

// loadProgress adds up the progress of the loads of several models.
type loadProgress struct {
	notify func(done, total int64)
	mu     sync.Mutex
	parts  [][2]int64 // done and total of each model
}

// progressOf returns the sum of the progress of a number of models; notify may be nil.
func progressOf(notify func(done, total int64), models int) *loadProgress {
	return &loadProgress{notify: notify, parts: make([][2]int64, models)}
}

// part returns the function to which a model reports its progress; nil if there is no receiver.
func (p *loadProgress) part(number int) func(done, total int64) {
	if p.notify == nil || len(p.parts) == 1 {
		return p.notify
	}
	return func(done, total int64) {
		p.mu.Lock()
		p.parts[number] = [2]int64{done, total}
		var sum [2]int64
		for _, x := range p.parts {
			sum[0], sum[1] = sum[0]+x[0], sum[1]+x[1]
		}
		p.mu.Unlock()
		p.notify(sum[0], sum[1])
	}
}
