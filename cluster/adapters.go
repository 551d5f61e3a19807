package cluster

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/adapters"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// openAdapters opens the registry of LoRA adapters, with those of the configuration.
func (c *core) openAdapters(dataDir string) error {
	cfg := adapters.Config{Model: &c.checkpoint.Config, Hash: c.checkpoint.Hash(), Names: c.serve.Names, From: c.serve.LoRADir}
	if dataDir != "" {
		cfg.Dir = filepath.Join(dataDir, "adapters")
		if c.several { // their order may differ at the next start
			cfg.Dir += "-" + c.checkpoint.Hash()[:12]
		}
	}
	r, skipped, err := adapters.Open(cfg)
	if err != nil {
		return err
	}
	c.adapters = r
	for _, err := range skipped {
		c.serve.Logger.Error("an adapter that was loaded over the API is not served", "error", err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.serve.LoRA)) {
		if _, err := r.Add(name, c.serve.LoRA[name]); err != nil {
			r.Close()
			return fmt.Errorf("cluster: %s %s: %w", options.Name("lora"), name, err)
		}
	}
	return nil
}

// dataDir returns the data directory, unless another process uses it.
func (c *Coordinator) dataDir(cfg *CoordinatorConfig) string {
	if c.store == nil {
		return ""
	}
	return cfg.DataDir
}

// adapterOf returns the adapter of a request.
func (c *core) adapterOf(r *engine.Request) (a batcher.Adapter, err error) {
	if r.Adapter == nil {
		return a, nil
	}
	if err := a.ID.UnmarshalText([]byte(r.Adapter.ID)); err != nil {
		return a, apierr.ErrInvalid{Param: "model", Message: err.Error()}
	}
	a.Bytes = r.Adapter.Bytes
	return a, nil
}

// Adapters implements engine.Adapters.
func (c *core) Adapters() (list []engine.Adapter) {
	for _, e := range c.adapters.List() {
		list = append(list, adapterInfo(e))
	}
	return list
}

// Adapter implements engine.Adapters.
func (c *core) Adapter(name string) (engine.Adapter, bool) {
	e, ok := c.adapters.Get(name)
	return adapterInfo(e), ok
}

// LoadAdapter implements engine.Adapters.
func (c *core) LoadAdapter(name, path string) error {
	e, err := c.adapters.Load(name, path)
	if err == nil {
		c.serve.Logger.Info("adapter loaded", "name", name, "id", e.ID, "rank", e.Rank, "bytes", e.Bytes)
	}
	return err
}

// UnloadAdapter implements engine.Adapters.
func (c *core) UnloadAdapter(name string) error {
	e, err := c.adapters.Unload(name)
	if err == nil {
		c.serve.Logger.Info("adapter unloaded", "name", name, "id", e.ID)
	}
	return err
}

func adapterInfo(e adapters.Entry) engine.Adapter {
	if e.ID == (lora.ID{}) {
		return engine.Adapter{}
	}
	return engine.Adapter{Name: e.Name, ID: e.ID.String(), Root: e.Root, Rank: e.Rank, Bytes: e.Bytes, Created: e.Created}
}
