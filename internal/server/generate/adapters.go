package generate

import "github.com/shoal-llm/shoal/internal/server/engine"

// LoRA adapters are chosen by the name of the model.

// Adapters returns the adapters of the engine, or nil.
func (s *Service) Adapters() engine.Adapters {
	a, _ := s.engine.(engine.Adapters)
	return a
}

// AdapterNamed returns the adapter of a name.
func (s *Service) AdapterNamed(name string) (engine.Adapter, bool) {
	if all := s.Adapters(); all != nil {
		return all.Adapter(name)
	}
	return engine.Adapter{}, false
}

// Adapter returns the adapter of a request, or nil.
func (p *Params) Adapter() *engine.Adapter { return p.adapter }

// adapterID returns the ID of the adapter of a request, or "".
func (p *Params) adapterID() string {
	if p.adapter == nil {
		return ""
	}
	return p.adapter.ID
}

func (x *FixedContext) adapterID() string {
	if x.Adapter == nil {
		return ""
	}
	return x.Adapter.ID
}

func (x *FixedContext) adapterName() string {
	if x.Adapter == nil {
		return ""
	}
	return x.Adapter.Name
}

// fingerprint identifies the weights of a model or an adapter, by its name: those with one fingerprint
// give the same bits.
func (s *Service) fingerprint(model string) string {
	print := s.Config.SystemFingerprint
	if a, ok := s.AdapterNamed(model); ok && print != "" {
		print += "-lora-" + a.ID[:min(12, len(a.ID))]
	}
	return print
}

// Adapter returns the ID of the adapter that the task uses, or "".
func (t *Task) Adapter() string { return t.gen.adapterID() }
