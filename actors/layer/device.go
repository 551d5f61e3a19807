package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Device makes what a socket computes with: backends, weights and caches that belong together.
//
// The socket's loader reads a checkpoint and cuts it. It packs each slice as a tensor.Weight,
// which rounds to the weights' type: the rounding is part of the arithmetic and the same for all
// devices, and so are the weights cache and the memory that nodes share. The device then takes
// the packed layer and holds it in a layout of its own. At most one layer is packed at a time.
type Device interface {
	// Backend makes the activations of a micro-batch of at most maxRows rows.
	Backend(d Dims, maxRows int, cache tensor.KVLayout) Backend
	// Layer, Ends and MTP take packed weights, which they own from then on: Close of what they
	// return, or an error, frees them.
	Layer(w *Weights) (Layer, error)
	Ends(e *Ends) (Held, error)
	MTP(m *MTP) (Held, error)
	// States makes room for rows of hidden numbers that stay on the device; at first there are none.
	States(hidden int) States
	// Arena makes the memory of caches. Prompt and Owned are what layers see of a cache in it.
	Arena(budget int64) *kvcache.Arena
	Prompt(s *kvcache.Store, seen *kvcache.Observation, score tensor.Score) Cache
	Owned(s *kvcache.Store, score tensor.Score, rope kvcache.Rope) Cache
}

// Held are weights as a device holds them.
type Held interface {
	Bytes() int64 // of memory
	Close()
}

// Host is the device that computes on the machine's processors, with a pool's threads. It holds
// weights as they are packed.
type Host struct{ Pool *tensor.Pool }

func (h Host) Backend(d Dims, maxRows int, cache tensor.KVLayout) Backend {
	return NewProcessor(d, maxRows, cache, h.Pool)
}

func (Host) Layer(w *Weights) (Layer, error) { return w, nil }

func (Host) Ends(e *Ends) (Held, error) { return e, nil }

func (Host) MTP(m *MTP) (Held, error) { return m, nil }

func (Host) States(hidden int) States { return &HostStates{Hidden: hidden} }

func (Host) Arena(budget int64) *kvcache.Arena { return kvcache.NewArena(budget) }

func (Host) Prompt(s *kvcache.Store, seen *kvcache.Observation, score tensor.Score) Cache {
	return PromptCache{Store: s, Seen: seen, Score: score}
}

func (Host) Owned(s *kvcache.Store, score tensor.Score, rope kvcache.Rope) Cache {
	return OwnedCache{Store: s, Score: score, Rope: rope}
}
