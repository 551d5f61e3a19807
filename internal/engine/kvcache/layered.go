package kvcache

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Enter begins the next layers of a prompt that is read layer by layer (docs/decisions/layer-by-layer.md).
// It frees the rows of layers below layers.Lo, and resets the position to a number of tokens. Steps then
// allocate and write rows of the given layers only. Rows of later layers that Attach brought stay.
func (s *Store) Enter(layers tensor.Span, tokens int) {
	for i := range s.tables {
		if t := &s.tables[i]; t.Layer < layers.Lo && len(t.rows()) > 0 {
			s.arena.Release(t.rows()[t.freed:])
			t.planes[rowsPlane].blocks, t.n, t.freed = nil, 0, 0
		}
	}
	s.layers, s.tokens, s.staged, s.trimmed = layers, tokens, 0, 0
}

// absent reports whether the layer of a table is not being read.
func (s *Store) absent(t *table) bool {
	return s.layers.Hi > 0 && (t.Layer < s.layers.Lo || t.Layer >= s.layers.Hi)
}
