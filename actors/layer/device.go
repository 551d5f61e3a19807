package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Device creates the backends, weights and caches of a socket. They belong together.
//
// The socket's loader reads and slices a checkpoint. It packs each slice as a tensor.Weight, which
// rounds to the type of the weights. The rounding is part of the arithmetic, so it is the same for
// all devices; so are the weights cache and the memory that nodes share. The device then converts
// the packed layer to its own layout. At most one layer is packed at a time.
type Device interface {
	// Backend allocates the activations of a micro-batch of at most maxRows rows.
	Backend(d Dims, maxRows int, cache tensor.KVLayout) Backend
	// Layer, Ends and MTP take ownership of packed weights. They are freed by Close of the result,
	// or by these methods if they fail.
	Layer(w *Weights) (Layer, error)
	Ends(e *Ends) (Held, error)
	MTP(m *MTP) (Held, error)
	// States returns an empty list of hidden-state rows on the device.
	States(hidden int) States
	// Arena allocates the memory of caches. Prompt and Owned adapt caches in it for the layers.
	Arena(budget int64) *memory.Arena
	Prompt(s *kvcache.Store, seen *kvcache.Observation, score tensor.Score) Cache
	Owned(s *kvcache.Store, score tensor.Score, ropes kvcache.Ropes) Cache
}

// Held has weights in the layout of a device.
type Held interface {
	Bytes() int64 // memory in bytes
	Close()
}

// Host is the device that computes on the CPU with the threads of a pool. It uses packed weights
// without conversion.
type Host struct{ Pool *tensor.Pool }

func (h Host) Backend(d Dims, maxRows int, cache tensor.KVLayout) Backend {
	return NewProcessor(d, maxRows, cache, h.Pool)
}

func (Host) Layer(w *Weights) (Layer, error) { return w, nil }

func (Host) Ends(e *Ends) (Held, error) { return e, nil }

func (Host) MTP(m *MTP) (Held, error) { return m, nil }

func (Host) States(hidden int) States { return &HostStates{Hidden: hidden} }

func (Host) Arena(budget int64) *memory.Arena { return memory.NewArena(budget) }

func (Host) Prompt(s *kvcache.Store, seen *kvcache.Observation, score tensor.Score) Cache {
	return PromptCache{Store: s, Seen: seen, Score: score}
}

func (Host) Owned(s *kvcache.Store, score tensor.Score, ropes kvcache.Ropes) Cache {
	return OwnedCache{Store: s, Score: score, Ropes: ropes}
}
