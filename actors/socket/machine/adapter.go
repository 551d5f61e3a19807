package machine

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// An epoch begins without LoRA adapters. The coordinator has them loaded, before a plan opens the first
// sequence that has one, and dropped when no sequence has them.

// checkAdapter checks that the adapter of a sequence is in memory.
func (m *Machine) checkAdapter(o *plan.Open) error {
	if o.Adapter != (lora.ID{}) && !m.adapters[o.Adapter] {
		return fmt.Errorf("socket: sequence %d: adapter %v is not loaded", o.Seq, o.Adapter)
	}
	return nil
}

// Adapt checks a request that drops adapters in an epoch, and then loads one. It returns the adapters
// that were in memory.
func (m *Machine) Adapt(epoch uint32, drop [][]byte) (dropped []lora.ID, err error) {
	if epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping {
		return nil, fmt.Errorf("%w: an adapter in epoch %d, at %d (%s)", ErrStaleEpoch, epoch, m.Epoch, m.Phase)
	}
	for _, b := range drop {
		id, err := lora.IDOf(b)
		if err != nil {
			return nil, err
		}
		for _, q := range m.seqs {
			if q.Adapter == id && q.inFlight != 0 {
				return nil, fmt.Errorf("socket: adapter %v is dropped while a step uses it", id)
			}
		}
		if m.adapters[id] {
			dropped = append(dropped, id)
		}
	}
	for _, id := range dropped {
		delete(m.adapters, id)
	}
	return dropped, nil
}

// Adapted reports whether an adapter that was loaded for an epoch can be used: the epoch is not over.
// An adapter that is in memory already is not used twice.
func (m *Machine) Adapted(epoch uint32, id lora.ID) bool {
	if epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping || m.adapters[id] {
		return false
	}
	m.adapters[id] = true
	return true
}

// HasAdapter reports whether an adapter is in memory.
func (m *Machine) HasAdapter(id lora.ID) bool { return m.adapters[id] }
