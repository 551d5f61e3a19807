package kvcachetest

import "github.com/shoal-llm/shoal/internal/engine/kvcache/results"

// Results stores results of indexes in memory.
type Results struct {
	Values             map[results.Key][]byte
	Recalled, Computed int
}

// Recall implements results.Store.
func (m *Results) Recall(of results.Key, size int) []byte {
	if v := m.Values[of]; len(v) == size {
		m.Recalled++
		return v
	}
	return nil
}

// Keep implements results.Store.
func (m *Results) Keep(of results.Key, size int, read func(dst []byte) []byte) {
	m.Computed++
	if v := read(nil); len(v) == size {
		if m.Values == nil {
			m.Values = map[results.Key][]byte{}
		}
		m.Values[of] = v
	}
}
