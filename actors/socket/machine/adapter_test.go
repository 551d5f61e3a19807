package machine

import (
	"errors"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/lora"
)

// TestAdapt: the newest decision determines the adapters that leave, in any order of arrival. No adapter
// leaves that a step uses.
func TestAdapt(t *testing.T) {
	m := NewMachine()
	m.Epoch, m.Phase = 3, Ready
	a, b, c := lora.ID{1}, lora.ID{2}, lora.ID{3}
	adapt := func(epoch uint32, number uint64, keep ...lora.ID) []lora.ID {
		t.Helper()
		var list [][]byte
		for _, id := range keep {
			list = append(list, id.Bytes())
		}
		dropped, err := m.Adapt(epoch, number, list)
		if err != nil {
			t.Fatal(err)
		}
		return dropped
	}
	if _, err := m.Adapt(2, 1, nil); !errors.Is(err, ErrStaleEpoch) || m.Adapted(2, a) {
		t.Errorf("an adapter of another epoch: %v", err)
	}
	adapt(3, 2, a, b)
	if !m.Adapted(3, a) || !m.Adapted(3, b) || m.Adapted(3, a) {
		t.Error("two adapters are in memory once each")
	}
	if dropped := adapt(3, 1, a); len(dropped) > 0 || !m.HasAdapter(b) {
		t.Errorf("an older decision drops %v", dropped)
	}
	m.seqs[7] = &Sequence{Adapter: a, inFlight: true}
	if _, err := m.Adapt(3, 3, [][]byte{b.Bytes()}); err == nil || !m.HasAdapter(a) {
		t.Errorf("an adapter leaves during its step: %v", err)
	}
	m.seqs[7].inFlight = false
	if dropped := adapt(3, 4, b, c); !slices.Equal(dropped, []lora.ID{a}) || m.HasAdapter(a) || !m.HasAdapter(b) {
		t.Errorf("dropped %v", dropped)
	}
	m.Phase = Loading
	m.leave(true)
	if m.HasAdapter(b) || m.adaptNumber != 0 {
		t.Error("adapters outlive their epoch")
	}
}
