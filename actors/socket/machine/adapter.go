package machine

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// An epoch begins without LoRA adapters. The coordinator orders the load of an adapter before a plan
// opens the first sequence with it, and its removal when no sequence with it has further rows. Another sequence may take
// over the cache of one that is still open.

// checkAdapter checks that the adapter of a sequence is in memory.
func (m *Machine) checkAdapter(o *plan.Open) error {
	if o.Adapter != (lora.ID{}) && !m.adapters[o.Adapter] {
		return fmt.Errorf("socket: sequence %d: adapter %v is not loaded", o.Seq, o.Adapter)
	}
	return nil
}

// checkLoaded checks that a sequence with further rows still has its adapter.
func checkLoaded(seq uint64, q *Sequence) error {
	if q.unloaded {
		return fmt.Errorf("socket: sequence %d has rows, but its adapter %v has left the memory", seq, q.Adapter)
	}
	return nil
}

// Adapt checks a request that keeps some adapters of an epoch in memory, and then loads one. It returns
// the adapters that leave: none if a later decision, by its number, has arrived before.
func (m *Machine) Adapt(epoch uint32, number uint64, keep [][]byte) (dropped []lora.ID, err error) {
	if epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping {
		return nil, fmt.Errorf("%w: an adapter in epoch %d, at %d (%s)", ErrStaleEpoch, epoch, m.Epoch, m.Phase)
	}
	if number < m.adaptNumber {
		return nil, nil
	}
	m.adaptNumber = number
	stays := map[lora.ID]bool{}
	for _, b := range keep {
		id, err := lora.IDOf(b)
		if err != nil {
			return nil, err
		}
		stays[id] = true
	}
	for _, q := range m.seqs {
		if q.inFlight && m.adapters[q.Adapter] && !stays[q.Adapter] {
			return nil, fmt.Errorf("socket: adapter %v leaves while a step uses it", q.Adapter)
		}
	}
	for id := range m.adapters {
		if !stays[id] {
			dropped = append(dropped, id)
		}
	}
	for _, id := range dropped {
		delete(m.adapters, id)
	}
	for _, q := range m.seqs {
		q.unloaded = q.unloaded || slices.Contains(dropped, q.Adapter)
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
