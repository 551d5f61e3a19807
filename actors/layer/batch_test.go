package layer

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// newBatch returns a micro-batch whose backend is the processor.
func newBatch(d Dims, maxRows int, layout tensor.KVLayout, pool *tensor.Pool) *Batch {
	return NewBatch(d, maxRows, NewProcessor(d, maxRows, layout, pool))
}
